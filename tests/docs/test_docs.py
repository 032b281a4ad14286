"""The documentation is true: its commands run, its JSON keys are printed, its links and tables hold.

Every line of every `sh` block and every `python` block, whole, of the README and of docs/ is run, in one
home, in the order of PAGES. A block whose fence names a file (```json my.jsonl) becomes that file first. Two
kinds of line are not run but checked: `make` targets must exist, and a recipe whose model is not the built-in
tiny one is checked by `trueup recipe check` with the same overrides, since training it takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from in_process import Done, call
from trueup.recipe import load_recipe
from trueup.schema import InputError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
JSON_PAGE = DOCS / "json.md"
# json.md comes second: its tables are held against the README's own small run, which has an event to show.
README = ROOT / "README.md"
CHINESE_README = ROOT / "README.zh-CN.md"
PAGES = list(dict.fromkeys([README, JSON_PAGE, *sorted(DOCS.glob("*.md"))]))
LINKED_PAGES = [*PAGES, CHINESE_README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FENCE = re.compile(r"^```(?P<language>\w+) ?(?P<file>\S*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """One command of a page."""

    page: str
    section: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


@dataclass(frozen=True)
class Ran:
    line: Line
    code: int
    out: str
    err: str


def lines(page: Path) -> Iterator[Line]:
    text = page.read_text(encoding="utf-8")
    for block in FENCE.finditer(text):
        section = HEADING.findall(text[: block.start()])[-1]
        if block["language"] == "python":
            yield Line(page.name, section, ("python", "-c", block["body"]))
        if block["language"] != "sh":
            continue
        for line in block["body"].splitlines():
            if words := shlex.split(line, comments=True):
                yield Line(page.name, section, tuple(words))


def named_files() -> dict[str, str]:
    """Files that the pages tell the reader to write."""
    blocks = (b for page in PAGES for b in FENCE.finditer(page.read_text(encoding="utf-8")))
    return {block["file"]: block["body"] for block in blocks if block["file"]}


def runnable(words: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """The command itself, or the check that stands for one that would train or fetch a real model."""
    if words[0] == "python" or words[1] not in ("train", "prepare"):
        return words
    overrides = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    if load_recipe(folder / words[2], overrides).recipe.model.path == "tiny":
        return words
    return ("trueup", "recipe", "check", words[2], *(w for one in overrides for w in ("--set", one)))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[Ran]:
    """Every `trueup` command and Python block of the pages, run in order in one home and one folder."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    for name, body in named_files().items():
        (folder / name).write_text(body, encoding="utf-8")
    found = []
    for line in (line for page in PAGES for line in lines(page) if line.words[0] != "make"):
        program, *arguments = runnable(line.words, folder)
        if program == "trueup":
            done = call(*arguments, home=folder / "home", folder=folder)
        else:
            done = python(*arguments, home=folder / "home", folder=folder)
        found.append(Ran(line, done.code, done.out, done.err))
    return found


def python(*arguments: str, home: Path, folder: Path) -> Done:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "TRUEUP_HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_pages_have_commands_to_run(ran: list[Ran]) -> None:
    verbs = {one.line.words[1] for one in ran}
    assert verbs >= {"-c", "prepare", "train", "runs", "bill", "report", "export", "recipe", "calibrate"}


def test_every_command_in_the_docs_works(ran: list[Ran]) -> None:
    assert [f"{one.line}: {one.code}\n{one.err}" for one in ran if one.code] == []


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: page.name)
def test_blocks_to_run_hold_only_what_is_run_or_checked(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in lines(page):
        assert line.words[0] in ("trueup", "make", "python"), line
        if line.words[0] == "make":
            assert set(line.words[1:]) <= targets, line


def test_the_makefiles_recipes_are_valid() -> None:
    used = re.findall(r"recipes/\S+\.yaml", (ROOT / "Makefile").read_text())
    assert used
    for path in set(used):
        load_recipe(ROOT / path)


# --- json.md ----------------------------------------------------------------------------------------------


def key_tables() -> dict[str, list[str]]:
    """Section of json.md -> the key paths of its table."""
    parts = re.split(r"^## (.+)$", JSON_PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    titles_and_bodies = zip(parts[1::2], parts[2::2], strict=True)
    return {title: re.findall(r"^\| `([^`]+)` \|", body, re.MULTILINE) for title, body in titles_and_bodies}


def at(document: Any, path: str) -> list[Any]:
    """Every value at a path such as `lines[].name` or `measurements.NAME`; capitals stand for any key."""
    found = [document]
    for part in re.findall(r"\[\]|[^.\[\]]+", path):
        if part == "[]":
            found = [item for one in found for item in one]
        elif part.isupper():
            found = [item for one in found for item in one.values()]
        else:
            found = [one[part] for one in found]
    return found


def document_of(ran: list[Ran], section: str) -> Any:
    """What the section's command printed: exactly one JSON document."""
    (one,) = (one for one in ran if one.line.page == JSON_PAGE.name and one.line.section == section)
    return json.loads(one.out)


SECTIONS = [title for title in key_tables() if title != "A measurement"]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_documented_key_is_printed(ran: list[Ran], section: str) -> None:
    document = document_of(ran, section)
    for path in key_tables()[section]:
        assert at(document, path), f"nothing at {path}"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_printed_key_is_documented(ran: list[Ran], section: str) -> None:
    document = document_of(ran, section)
    inside = "[]." if isinstance(document, list) else ""
    (item, *_) = document if inside else [document]
    documented = {re.split(r"[.\[]", path.removeprefix(inside))[0] for path in key_tables()[section]}
    assert set(item) == documented


def test_a_measurement_has_the_documented_keys(ran: list[Ran]) -> None:
    keys = set(key_tables()["A measurement"])
    figures = at(document_of(ran, "`runs show`, `train`"), "measurements.NAME")
    figures += at(document_of(ran, "`calibrate`"), "measurements.NAME")
    bill = document_of(ran, "`bill`")
    figures += [one for name, one in bill.items() if name.startswith("usd_per_million")]
    assert all(set(one) == keys for one in figures)


# --- what else the pages claim ----------------------------------------------------------------------------


def test_generated_pages_are_fresh() -> None:
    command = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in {slug(one) for one in HEADING.findall(file.read_text(encoding="utf-8"))}, target


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: page.name)
def test_files_named_in_the_pages_exist(page: Path) -> None:
    for name in re.findall(
        r"`((?:tests|bench|docs|recipes|src)/[\w/.-]+\.\w+)`", page.read_text(encoding="utf-8")
    ):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_chinese_readme_says_the_same() -> None:
    """Every block is word for word the English one's; so are the links, and there is a heading for each."""
    english, chinese = (path.read_text(encoding="utf-8") for path in (README, CHINESE_README))
    assert [m.groups() for m in FENCE.finditer(chinese)] == [m.groups() for m in FENCE.finditer(english)]

    def links(text: str) -> set[str]:
        return set(re.findall(r"\]\(([^)\s]+)\)", text)) - {README.name, CHINESE_README.name}

    assert links(chinese) == links(english)
    headings = [re.findall(r"^(#+) ", FENCE.sub("", text), re.MULTILINE) for text in (english, chinese)]
    assert headings[0] == headings[1]
    assert CHINESE_README.name in english
    assert README.name in chinese


@pytest.mark.parametrize(
    "command", ["predict", "calibrate", "breakeven", "audit", "prices list", "memory plan"]
)
def test_the_readme_shows_what_is_asked_before_a_run_and_about_money(command: str) -> None:
    assert re.search(rf"^trueup {command}\b", README.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_readmes_bill_is_that_of_a_measured_run(tmp_path: Path) -> None:
    """Printed from the bundle that the README names, spaces at the ends of lines aside."""
    text = README.read_text(encoding="utf-8")
    bill = text.partition("<!-- bill -->")[2].partition("<!-- /bill -->")[0]
    assert call("runs", "import", ROOT / "docs/measured/demo-cpu-2-cores/0.zip", home=tmp_path).code == 0
    done = call("bill", "last", home=tmp_path)
    assert done.code == 0, done.err
    printed = "\n".join(line.rstrip() for line in done.out.splitlines())
    assert f"```text\n{printed}\n```" in bill


def test_the_readmes_bill_adds_up() -> None:
    text = README.read_text(encoding="utf-8")
    bill = text.partition("<!-- bill -->")[2].partition("<!-- /bill -->")[0]
    row = re.compile(r"^  (\S.*?) {2,}([\d,]+\.\d\d) +([\d.]+) +<?([\d.]+) %", re.MULTILINE)
    rows = [(name, float(s.replace(",", "")), usd) for name, s, usd, _ in row.findall(bill)]
    (*parts, (total_name, total_s, total_usd)) = rows
    assert total_name == "total"
    assert len(parts) >= 8
    rounding = (len(parts) + 1) / 2
    assert abs(sum(s for _, s, _ in parts) - total_s) <= 0.01 * rounding
    last_digit = 10.0 ** -len(total_usd.partition(".")[2])
    assert abs(sum(float(usd) for _, _, usd in parts) - float(total_usd)) <= last_digit * rounding


def test_the_architecture_page_has_the_floors_that_are_tested() -> None:
    floors = runpy.run_path(str(ROOT / "tests" / "test_floors.py"))["ALLOWED"]
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows} == floors


def test_every_reason_to_drop_or_change_a_row_is_documented() -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+_\w+|truncated)` \|", page, re.MULTILINE))
    pattern = r'(?:RowError\(\s*|tally\.(?:drop|change)\(\s*|changes\.append\(\s*|\*\(\[)"(\w+)"'
    in_code = {
        reason
        for path in (ROOT / "src" / "trueup" / "data").glob("*.py")
        for reason in re.findall(pattern, path.read_text(encoding="utf-8"))
    }
    assert in_code <= documented
    assert len(in_code) >= 15


def test_every_bill_line_and_span_is_documented() -> None:
    from trueup.analysis.bill import LINE_NAMES
    from trueup.schema import SpanName

    bill = set(re.findall(r"`(\w+)`", (DOCS / "bill.md").read_text(encoding="utf-8")))
    assert set(LINE_NAMES) <= bill
    measuring = set(re.findall(r"`(\w+)`", (DOCS / "measuring.md").read_text(encoding="utf-8")))
    assert {value for key, value in vars(SpanName).items() if key.isupper()} <= measuring


def test_a_recipe_that_is_wrong_would_be_caught(tmp_path: Path) -> None:
    """The check that stands for training a real model refuses what training would refuse."""
    (tmp_path / "my.yaml").write_text(named_files()["my.yaml"], encoding="utf-8")
    with pytest.raises(InputError, match=r"did you mean 'train\.epochs'"):
        runnable(("trueup", "train", "my.yaml", "--set", "train.epoch=2"), tmp_path)
