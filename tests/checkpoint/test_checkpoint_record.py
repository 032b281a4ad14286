"""The run's record goes with a checkpoint and comes back, whichever home the run went on in last."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from checkpoint_records import contents, make_run, snapshot

from trueup.checkpoint.folder import DamagedCheckpointError, read_manifest, verified, write_checkpoint
from trueup.checkpoint.record import restore_record

FILES = ("run.json", "steps.jsonl", "evaluations.jsonl")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


def save(run: Path, step: int = 40) -> Path:
    return write_checkpoint(run / "checkpoints", snapshot(step, record=tuple(run / name for name in FILES)))


def restored(folder: Path, run_folder: Path) -> tuple[list[str], list[str]]:
    """Names of the files brought, and what was said."""
    said: list[str] = []
    return restore_record(folder, verified(folder), run_folder, said.append), said


def add_steps(run: Path, *steps: int) -> None:
    with (run / "steps.jsonl").open("a") as file:
        file.writelines(f'{{"step": {step}}}\n' for step in steps)


def steps_in(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "steps.jsonl").read_text().splitlines()]


def test_it_is_saved_in_whole_lines_and_comes_back(run: Path, elsewhere: Path) -> None:
    folder = save(run)
    assert gzip.decompress((folder / "record/steps.jsonl.gz").read_bytes()) == b'{"step": 1}\n{"step": 2}\n'
    assert restored(folder, elsewhere) == (["run.json", "steps.jsonl"], [])
    assert steps_in(elsewhere) == [1, 2]


def test_a_record_that_has_grown_since_stays(run: Path, elsewhere: Path) -> None:
    folder = save(run)
    restored(folder, elsewhere)
    add_steps(elsewhere, 3, 4)
    before = contents(elsewhere)
    assert restored(folder, elsewhere) == ([], [])
    assert contents(elsewhere) == before


def test_a_run_that_is_brought_from_elsewhere_does_not_run_here(run: Path, elsewhere: Path) -> None:
    """Its header was saved while it did."""
    restored(save(run), elsewhere)
    header = json.loads((elsewhere / "run.json").read_text())
    assert header["state"] == "interrupted"
    assert "the checkpoint of step 40" in header["reason"]


def test_a_run_that_alternates_between_two_homes_keeps_its_whole_record(run: Path, elsewhere: Path) -> None:
    """What the first home did beyond the checkpoint that the second took up is left aside, with its readings
    of sensors: their times are now those of what the second did."""
    (run / "steps.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    restored(save(run), elsewhere)
    add_steps(run, 3)
    (run / "samples.jsonl").write_text("readings\n")
    (run / "evaluations.jsonl").write_text("of the third step\n")
    add_steps(elsewhere, 3, 4, 5)
    brought, said = restored(save(elsewhere, 50), run)
    aside = run / "record-00000050.left"
    assert (brought, steps_in(run)) == (["run.json", "steps.jsonl"], [1, 2, 3, 4, 5])
    assert (steps_in(aside), (aside / "samples.jsonl").read_text()) == ([1, 2, 3], "readings\n")
    assert not (run / "samples.jsonl").exists()
    assert not (run / "evaluations.jsonl").exists()
    assert str(aside) in said[0]


def test_bringing_it_is_gone_on_with_where_it_was_cut_short(
    run: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "steps.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    restored(save(run), elsewhere)
    add_steps(run, 3)
    add_steps(elsewhere, 4)
    folder = save(elsewhere, 50)

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("trueup.checkpoint.record.unpack", killed)
        with pytest.raises(KeyboardInterrupt):
            restored(folder, run)
    assert (run / "run.json").exists()
    restored(folder, run)
    assert (steps_in(run), steps_in(run / "record-00000050.left")) == ([1, 2, 4], [1, 2, 3])


def test_one_that_cannot_be_unpacked_leaves_nothing(run: Path, elsewhere: Path) -> None:
    folder = save(run)
    file = folder / "record/steps.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-6])
    with pytest.raises(DamagedCheckpointError, match=r"steps\.jsonl\.gz is damaged"):
        restore_record(folder, read_manifest(folder), elsewhere, print)
    assert contents(elsewhere).keys() <= {"run.json"}
