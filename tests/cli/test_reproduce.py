"""`trueup reproduce`: the recipe runs again as it was decided, and the two are held side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_compare import add_copy, only_run

from in_process import Main, refused


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new run's process finds the tests' settings in its environment."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.usefixtures("unlimited")
def test_a_run_is_repeated_to_the_last_bit_and_recorded_as_a_run_of_its_own(
    main: Main, finished: Path
) -> None:
    """On a CPU the same recipe and seed give the same losses."""
    first = only_run(finished).name
    done = main("reproduce", "last", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["original"] == first
    assert document["again"] != first
    rows = {row["name"]: row for row in document["measurements"]}
    for name in ("useful_tokens", "loss_first", "loss_last", "eval_perplexity_last"):
        assert rows[name]["verdict"] == "identical", rows[name]
    assert document["settings"] == []
    names = {run["name"] for run in json.loads(main("runs", "list", "--json").out)}
    assert names == {"tiny", "tiny-2"}


def test_two_recorded_runs_are_compared_without_running(main: Main, finished: Path) -> None:
    source = only_run(finished)
    add_copy(source, "00000001", "again", minute=1, dear=2, repeat=0)
    document = json.loads(main("reproduce", source.name, "--against", "again", "--json").out)
    rows = {row["name"]: row for row in document["measurements"]}
    assert rows["usd_per_million_useful_tokens"]["deviates"]
    assert rows["useful_tokens"]["verdict"] == "identical"
    assert len(json.loads(main("runs", "list", "--json").out)) == 2


def test_people_see_what_deviates_beside_what_differs(main: Main, finished: Path) -> None:
    source = only_run(finished)
    add_copy(source, "00000001", "again", minute=1, dear=2, repeat=0)
    header = json.loads((source.with_name("00000001") / "run.json").read_text())
    header["environment"]["versions"]["torch"] = "9.9"
    (source.with_name("00000001") / "run.json").write_text(json.dumps(header))
    out = main("reproduce", source.name, "--against", "again").out
    assert "deviate by more than 5 %" in out
    assert "usd_per_million_useful_tokens" in out
    assert "versions.torch" in out


def test_a_run_is_not_held_against_itself(main: Main, finished: Path) -> None:
    refused(main("reproduce", "last", "--against", "tiny"), 2, "is no repetition of itself")


def test_a_name_is_for_a_new_run(main: Main, finished: Path) -> None:
    refused(main("reproduce", "last", "--against", "last", "--name", "x"), 2, "--name is for a new run")


def with_header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    header = json.loads((folder / "run.json").read_text())
    change(header)
    (folder / "run.json").write_text(json.dumps(header))


def test_a_run_whose_data_have_changed_is_refused_with_both_digests(
    main: Main, finished: Path, tmp_path: Path
) -> None:
    folder = only_run(finished)
    changed = tmp_path / "changed.jsonl"

    def elsewhere(header: dict[str, Any]) -> None:
        text = Path(header["recipe"]["data"]["source"]).read_text()
        changed.write_text(text + '{"prompt": "And now?", "completion": "More."}\n')
        header["recipe"]["data"]["source"] = str(changed)

    with_header(folder, elsewhere)
    digest = json.loads((folder / "run.json").read_text())["dataset"]["digest"]
    said = (f"The data are others: their digest was {digest[:12]}, now it is ", "--allow-difference data")
    refused(main("reproduce", "last"), 2, *said)
    assert len([*(finished / "runs").iterdir()]) == 1


def test_a_run_whose_base_model_has_changed_is_refused_with_both_digests(main: Main, finished: Path) -> None:
    folder = only_run(finished)
    kept = json.loads((folder / "run.json").read_text())["environment"]["base_model"]["digest"]
    with_header(folder, lambda header: header["environment"]["base_model"].update(digest="0" * 64))
    said = (f"its digest was {'0' * 12}, now it is {kept[:12]}", "--allow-difference model")
    refused(main("reproduce", "last"), 2, *said)
    refused(main("reproduce", "last", "--allow-difference", "modle"), 2, "it is one of data, model")


def test_a_run_whose_data_are_gone_fails_in_the_words_of_train(main: Main, finished: Path) -> None:
    folder = only_run(finished)
    header = json.loads((folder / "run.json").read_text())
    header["recipe"]["data"]["source"] = str(folder / "gone.jsonl")
    (folder / "run.json").write_text(json.dumps(header))
    shutil.rmtree(finished / "data", ignore_errors=True)
    done = main("reproduce", "last")
    assert done.code == 2
    assert "gone.jsonl" in done.err
    assert done.out == ""
