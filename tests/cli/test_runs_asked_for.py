"""Runs that are not there, are there twice, or cannot give what is asked; and what strangers put in them."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from in_process import Main, files_of, refused
from trueup.checkpoint.folder import best_of

ASKING: list[list[str]] = [
    ["bill", "RUN"],
    ["runs", "show", "RUN"],
    ["runs", "export", "RUN", "-o", "OUT"],
    ["report", "RUN", "-o", "OUT"],
    ["export", "RUN", "--adapter", "OUT"],
    ["export", "RUN", "--merged", "OUT"],
]


def asked(template: list[str], ref: str, out: Path) -> list[str]:
    return [{"RUN": ref, "OUT": str(out)}.get(word, word) for word in template]


def only_run(home: Path) -> Path:
    (folder,) = (home / "runs").iterdir()
    return folder


@pytest.mark.parametrize("verb", ASKING, ids=" ".join)
def test_an_unknown_run(main: Main, finished: Path, tmp_path: Path, verb: list[str]) -> None:
    refused(main(*asked(verb, "tinny", tmp_path / "out")), 2, "no run 'tinny'", "did you mean tiny?")
    refused(main(*asked(verb, "zzz", tmp_path / "out")), 2, "no run 'zzz'", "`trueup runs list`")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ASKING, ids=" ".join)
def test_a_home_without_runs(main: Main, home: Path, tmp_path: Path, verb: list[str]) -> None:
    refused(main(*asked(verb, "last", tmp_path / "out")), 2, str(home), "`trueup train RECIPE` makes one")


def test_a_name_of_two_runs_lists_their_ids(main: Main, finished: Path) -> None:
    """As after importing a namesake from another machine."""
    first = only_run(finished)
    second = first.with_name("0123abcd")
    shutil.copytree(first, second)
    header = json.loads((second / "run.json").read_text())
    (second / "run.json").write_text(json.dumps(header | {"id": second.name}))
    refused(main("bill", "tiny"), 2, "2 runs are named 'tiny'", first.name, second.name, "give the id of one")
    assert json.loads(main("bill", "0123", "--json").out)["run"] == second.name


def test_two_runs_with_one_name(main: Main, finished: Path, recipe_file: Path) -> None:
    """A name that was asked for must be new; the recipe's own is numbered."""
    before = files_of(finished / "runs")
    refused(main("train", recipe_file, "--name", "tiny"), 2, only_run(finished).name, "choose another")
    assert files_of(finished / "runs") == before
    trained = json.loads(main("train", recipe_file, "--set", "train.max_steps=1", "--json").out)
    assert trained["name"] == "tiny-2"
    assert json.loads(main("runs", "show", "tiny-2", "--json").out)["id"] == trained["id"]


@pytest.mark.parametrize("name", ["", "  ", "last", "a\nb", "\x1b[31mred", "\udcff"])
def test_a_name_nobody_could_ask_for(main: Main, built: Path, recipe_file: Path, name: str) -> None:
    refused(main("train", recipe_file, "--name", name), 2, "name")
    assert not (built / "runs").exists()


def test_exports_that_cannot_be(main: Main, finished: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("precious")
    for kind in ("--adapter", "--merged"):
        refused(main("export", "last", kind, full), 2, str(full), "not an empty folder", "name a new folder")
        refused(main("export", "last", kind, full / "mine.txt"), 2, "not an empty folder")
    assert (full / "mine.txt").read_text() == "precious"
    refused(main("export", "last"), 2, "one of --adapter DIR, --merged DIR")
    refused(main("export", "last", "--adapter", "a", "--merged", "b"), 2, "give one of --adapter DIR")
    shutil.rmtree(only_run(finished) / "checkpoints")
    refused(main("export", "last", "--adapter", tmp_path / "new"), 2, "keeps no weights here")
    assert files_of(full) == {"mine.txt"}
    assert not (tmp_path / "new").exists()


def test_a_damaged_best_gives_way_to_the_last_and_is_said(
    main: Main, built: Path, recipe_file: Path, tmp_path: Path
) -> None:
    assert (
        main("train", recipe_file, "--set", "schedule.kind=constant", "--set", "optimizer.lr=0.3").code == 0
    )
    checkpoints = only_run(built) / "checkpoints"
    found = best_of(checkpoints)
    assert found is not None
    best = found[0]
    assert best.name != "00000006"  # at this rate an early step is the best
    (best / "weights.safetensors").write_bytes(b"")
    done = main("export", "last", "--adapter", tmp_path / "new", "--json")
    assert json.loads(done.out)["weights"] == "last, step 6"
    assert f"the best weights, of step {int(best.name)}, are damaged or gone" in done.err


def test_full_fine_tuning_has_no_adapter(main: Main, built: Path, recipe_file: Path, tmp_path: Path) -> None:
    full = ["--set", "tune.method=full", "--set", "train.max_steps=1"]
    assert main("train", recipe_file, *full).code == 0
    refused(main("export", "last", "--adapter", tmp_path / "a"), 2, "no adapter", "merged model instead")
    assert not (tmp_path / "a").exists()
    assert main("export", "last", "--merged", tmp_path / "m").code == 0


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def add_stranger(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as bundle:
        bundle.writestr("../../stranger", "x")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (cut, "not a readable bundle"),
        (add_stranger, "no run bundle has"),
        (lambda path: path.write_text("no zip"), "not a readable bundle"),
        (lambda path: path.unlink(), "no file"),
        (lambda path: (path.unlink(), path.mkdir()), "holds no bundle (*.zip)"),
    ],
)
def test_importing_garbage_adds_nothing(
    main: Main, finished: Path, tmp_path: Path, spoil: Callable[[Path], Any], why: str
) -> None:
    bundle, other = tmp_path / "run.zip", tmp_path / "other"
    assert main("runs", "export", "last", "-o", bundle).code == 0
    spoil(bundle)
    refused(main("runs", "import", bundle, home=other), 2, why)
    assert json.loads(main("runs", "list", "--json", home=other).out) == []
    assert not any(path.name == "stranger" for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("verb", ["runs export", "report"])
def test_a_target_that_cannot_be_written(main: Main, finished: Path, tmp_path: Path, verb: str) -> None:
    for target in (tmp_path, tmp_path / "absent" / "file"):
        refused(main(*verb.split(), "last", "-o", target), 2, str(target))
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "verb",
    [
        ["bill", "last"],
        ["bill", "last", "tiny", "--usd-per-hour", "2"],
        ["runs", "list"],
        ["runs", "show", "last"],
        ["runs", "export", "last", "-o", "OUT"],
        ["report", "last", "-o", "OUT"],
        ["export", "last", "--adapter", "OUT"],
        ["export", "last", "--merged", "OUT"],
        ["calibrate", "--device", "cpu", "--seconds", "0.1", "--no-steps"],
        ["prepare", "RECIPE"],
        ["recipe", "check", "RECIPE"],
        ["recipe", "show", "RECIPE"],
        ["recipe", "schema"],
        ["runs", "import", "ZIP"],
    ],
    ids=" ".join,
)
def test_json_is_one_document_and_nothing_else(
    main: Main, finished: Path, recipe_file: Path, tmp_path: Path, verb: list[str]
) -> None:
    """The same words without --json print for people, and fail no less and no more."""
    words = {"OUT": str(tmp_path / "out"), "RECIPE": str(recipe_file), "ZIP": str(tmp_path / "run.zip")}
    assert main("runs", "export", "last", "-o", tmp_path / "run.zip").code == 0
    done = main(*(words.get(word, word) for word in verb), *([] if "schema" in verb else ["--json"]))
    assert done.code == 0
    assert isinstance(json.loads(done.out), dict | list)


class Page(HTMLParser):
    """Collects what a browser would run."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "img") or any(name.startswith("on") for name, _ in attrs):
            self.active.append(tag)


HOSTILE = "[/red]</title></style><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def test_hostile_names_and_data_are_text_wherever_they_are_shown(
    main: Main, built: Path, recipe_file: Path, tmp_path: Path
) -> None:
    data = tmp_path / "<b onclick=x>data.jsonl"
    rows = [{"prompt": f"{HOSTILE} {n}", "completion": f"</script>{HOSTILE}"} for n in range(40)]
    rows.append({"prompt": HOSTILE, "completion": ""})
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = [
        f"{key}=500" for key in ("data.max_length", "shapes.tokens_per_microbatch", "train.tokens_per_step")
    ]
    settings = [f"data.source={data}", "train.max_steps=1", *sizes]
    options = [part for value in settings for part in ("--set", value)]
    prepared = main("prepare", recipe_file, *options)
    assert "[/red]" in prepared.out
    assert main("train", recipe_file, *options, "--name", HOSTILE).code == 0
    for verb in (["runs", "list"], ["runs", "show", "last"], ["bill", "last"]):
        assert "[/red]" in main(*verb).out
    assert json.loads(main("runs", "show", HOSTILE, "--json").out)["name"] == HOSTILE
    assert main("report", HOSTILE, "-o", tmp_path / "r.html").code == 0
    page, reader = (tmp_path / "r.html").read_text(), Page()
    reader.feed(page)
    assert reader.active == []
    assert "&lt;script&gt;" in page
