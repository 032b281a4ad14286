"""`trueup compare` from the command line: selections, refusals, bundles, the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from copied_runs import add_copy, only_run

from in_process import Main, refused


@pytest.fixture
def several(finished: Path) -> Path:
    """Copies of the finished run: a-0, a-1, a-2 with rank 4 and, by turns with them, b-0, b-1, b-2 with rank
    8 and twice as dear."""
    source = only_run(finished)
    for number in range(6):
        group, repeat = "ab"[number % 2], number // 2
        add_copy(
            source, f"{number:08x}", f"{group}-{repeat}", minute=number, dear=1 + number % 2, repeat=repeat
        )
    shutil.rmtree(source)
    (finished / "trueup.sqlite").unlink()  # it would remember the run whose folder is gone
    return finished


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    cost = "usd_per_million_useful_tokens"
    return {one["group"]: one["verdict"] for one in document["findings"] if one["metric"] == cost}


@pytest.mark.parametrize(
    "words",
    [["a-*", "b-*"], ["tune.rank=4", "tune.rank=8"], ["a-?", "b-?", "--allow-difference", "data"]],
    ids=" ".join,
)
def test_selections_become_groups(main: Main, several: Path, words: list[str]) -> None:
    document = json.loads(main("compare", *words, "--json").out)
    assert verdicts(document) == {words[1]: "dearer"}
    assert document["findings"][0]["design"] == "paired"


def test_by_groups_the_runs_of_one_selection(main: Main, several: Path) -> None:
    document = json.loads(main("compare", "*", "--by", "tune.rank", "--json").out)
    assert verdicts(document) == {"tune.rank=8": "dearer"}


def test_people_read_the_verdict_first(main: Main, several: Path) -> None:
    out = main("compare", "a-*", "b-*").out
    assert out.startswith("b-* is dearer than a-*")
    assert "Pareto front" in out
    assert "tune.rank" in out


def test_what_did_not_finish_is_left_out_and_said(main: Main, several: Path) -> None:
    add_copy(several / "runs" / "00000000", "0000ffff", "a-9", minute=9, dear=9, repeat=9, state="failed")
    done = main("compare", "a-*", "b-*")
    assert "left out: 0000ffff (a-9) failed" in done.out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["a-*"], ("name two selections or more",)),
        (["a-*", "a-0"], ("run 00000000 (a-0) is on both sides", "'a-*'", "'a-0'")),
        (["a-*", "c-*"], ("no run has a name like 'c-*'", "`trueup runs list`")),
        (["a-*", "tune.rank=99"], ("no run meets 'tune.rank=99'",)),
        (["a-*", "nobody"], ("there is no run 'nobody'",)),
        (["a-*", "absent.zip"], ("no file absent.zip",)),
        (["a-*", "b-*", "--by", "nothing"], ("--by nothing", "none of the runs has it")),
        (["a-*", "b-*", "--at-perplexity", "0.1"], ("--at-perplexity 0.1", "at least 1")),
        (["a-*", "b-*", "--allow-difference", "all"], ("--allow-difference all", "loss_mask")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_compared_is_refused_in_words(
    main: Main, several: Path, words: list[str], parts: tuple[str, ...]
) -> None:
    refused(main("compare", *words), 2, *parts)


def test_a_folder_of_bundles_is_a_selection(main: Main, several: Path, home: Path, tmp_path: Path) -> None:
    bundles = tmp_path / "measured"
    bundles.mkdir()
    for name in ("b-0", "b-1", "b-2"):
        assert main("runs", "export", name, "-o", bundles / f"{name}.zip").code == 0
    for number in (1, 3, 5):
        shutil.rmtree(several / "runs" / f"{number:08x}")
    (several / "trueup.sqlite").unlink()
    document = json.loads(main("compare", "a-*", bundles, "--json").out)
    assert verdicts(document) == {str(bundles): "dearer"}
    assert len(json.loads(main("runs", "list", "--json").out)) == 3


def test_one_run_against_bundles_has_a_table_and_no_verdict(
    main: Main, several: Path, tmp_path: Path
) -> None:
    bundles = tmp_path / "measured"
    bundles.mkdir()
    for name in ("b-0", "b-1", "b-2"):
        assert main("runs", "export", name, "-o", bundles / f"{name}.zip").code == 0
    done = main("compare", "a-0", bundles)
    out = " ".join(done.out.split())
    assert out.startswith(f"no verdict on {bundles} against a-0 (1 and 3 runs: at least 3 of each are needed")
    assert "$ per million useful tokens, all in" in out


def test_a_folder_without_bundles_is_refused(main: Main, several: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(main("compare", "a-*", tmp_path / "empty"), 2, "holds no bundle (*.zip)")


def test_the_page_is_one_file_with_the_picture(main: Main, several: Path, tmp_path: Path) -> None:
    done = main("compare", "a-*", "b-*", "-o", tmp_path / "c.html")
    assert done.code == 0
    page = (tmp_path / "c.html").read_text()
    assert "b-* is dearer than a-*" in page
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/", "").replace("http-equiv", "")


def test_the_list_of_runs_takes_selections_and_a_limit(main: Main, several: Path) -> None:
    listed = json.loads(main("runs", "list", "a-*", "--json").out)
    assert [run["name"] for run in listed] == ["a-2", "a-1", "a-0"]
    done = main("runs", "list", "--limit", "2")
    assert "b-2" in done.out
    assert "b-1" not in done.out
    assert "the newest 2; --limit shows more" in done.err
