"""The record and the bill of a run that several processes made: one run's, whole."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from survivors import Runs, assert_whole

from trueup.analysis.bill import make_bill
from trueup.analysis.totals import split_repeated
from trueup.checkpoint.folder import read_manifest
from trueup.store import Store

HZ = "telemetry.hz=10"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended by an error in its sixth step."""
    folder = tmp_path_factory.mktemp("ended")
    assert Runs(folder, HZ).train(trouble={"raise_in": 6}).code == 1
    return folder


@pytest.fixture
def runs(once: Path, tmp_path: Path) -> Runs:
    """That run, in a home of this test's own."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return Runs(tmp_path, HZ, home=tmp_path / "home")


def read_json(file: Path) -> Any:
    return json.loads(file.read_text())


def lines_of(bill: Any) -> dict[str, float]:
    return {line["name"]: line["seconds"] for line in bill["lines"]}


def test_the_states_it_goes_through(runs: Runs, tmp_path: Path) -> None:
    """In the store, by turns: failed, interrupted (killed), running, finished. Always one row."""

    def shown() -> Any:
        (run,) = runs.document("runs", "list")
        return run

    first = shown()
    assert (first["state"], first["id"]) == ("failed", runs.only.name)

    listing = ["sh", "-c", f"{sys.executable} -m trueup runs list --json > {tmp_path / 'listed.json'}"]
    done = runs.train(
        "--resume",
        "auto",
        trouble={
            "commands_after": {"7": listing},
            "kill": {"point": "save_file", "at": 6, "when": "before"},
        },
    )
    assert done.code == -9
    (running,) = read_json(tmp_path / "listed.json")
    assert (running["state"], running["reason"], running["ended_at"]) == ("running", None, None)
    down = shown()
    assert (down["state"], down["started_at"]) == ("interrupted", first["started_at"])
    assert down["wall_s"] > first["wall_s"]
    assert math.isclose(sum(lines_of(runs.document("bill", "last")).values()), down["wall_s"], rel_tol=1e-9)

    assert runs.train("--resume", "last").code == 0
    last = shown()
    assert (last["state"], last["started_at"]) == ("finished", first["started_at"])
    assert last["wall_s"] > down["wall_s"]
    assert_whole(runs)


def test_its_lines(runs: Runs) -> None:
    failed = lines_of(runs.document("bill", "last"))
    assert (failed["lost_work"], failed["down_time"]) == (0, 0)
    assert runs.train("--resume", "auto").code == 0
    record, bill = runs.record(), runs.document("bill", "last")
    lines = lines_of(bill)
    stand, lost = split_repeated(record.steps)
    assert [step.step for step in lost] == [5]
    assert lines["lost_work"] == pytest.approx(lost[0].step_s)
    starts = [segment for segment in runs.parts().told if segment.name == "start"]
    downs = [segment for segment in runs.parts().told if segment.name == "down_time"]
    assert len(starts) == 2
    assert lines["down_time"] == pytest.approx(sum(one.end_s - one.start_s for one in downs))
    assert downs[0].end_s == starts[1].start_s
    assert bill["useful_tokens"] == sum(step.useful_tokens for step in stand)
    assert record.measurements["useful_tokens"].value == bill["useful_tokens"]
    assert lines["load"] > failed["load"]  # both processes started up
    assert_whole(runs)


def test_steps_given_up_are_lost_work(runs: Runs) -> None:
    """It ends before it comes to the last step of the process before: the loop's own count is the bill's."""
    last, step = runs.checkpoints() / "00000004", runs.checkpoints() / "00000003"
    fewer = ["--set", "train.max_steps=4", "--allow-change", "train.max_steps"]
    done = runs.train("--resume", step, *fewer)
    assert done.code == 0, done.err
    assert [one.step for one in runs.record().steps] == [1, 2, 3, 4, 5, 4]
    bill = runs.document("bill", "last")
    assert bill["useful_tokens"] == read_manifest(last).state["tally"]["useful_tokens"]
    assert_whole(runs)


def test_it_is_the_same_from_memory_and_from_the_database(runs: Runs) -> None:
    done = runs.train("--resume", "auto", "--json")
    assert done.code == 0, done.err
    from_memory, stored = done.document, runs.document("runs", "show", "last")
    assert from_memory == stored
    with Store.open(runs.home) as store:
        record = store.record(runs.only.name)
    folder = runs.record()
    assert make_bill(record) == make_bill(folder)
    assert record.spans == folder.spans


def test_what_both_processes_saw_is_in_it(runs: Runs) -> None:
    before = runs.record()
    assert runs.train("--resume", "auto").code == 0
    after = runs.record()
    assert after.events[: len(before.events)] == before.events
    assert after.samples[: len(before.samples)] == before.samples
    assert after.steps[: len(before.steps)] == before.steps
    assert len(after.samples) > len(before.samples) > 0
    times = [sample.at_s for sample in after.samples]
    assert times == sorted(times)
    (resumed,) = [event for event in after.events if event.kind == "resume"]
    assert "goes on after step 4; it was failed before" in resumed.message
    assert resumed.message.endswith("; steps 5 to 5 no longer count")
    assert {"host", "process", "versions"} <= resumed.data["before"].keys()
    assert [event.kind for event in after.events].count("failed") == 1
    again = runs.train("--resume", "last")  # nothing is left to do
    assert again.code == 0


def test_a_run_resumed_twice_in_one_second(runs: Runs) -> None:
    """Killed before its first sign of life, again and again: the clock never runs back or twice."""
    for at in (1, 2, 5):
        trouble = {"kill": {"point": "rename", "at": at, "when": "before"}}
        assert runs.train("--resume", "last", trouble=trouble).code == -9
        (run,) = runs.document("runs", "list")
        assert run["state"] in ("failed", "interrupted")
    assert runs.train("--resume", "last").code == 0
    assert_whole(runs)
