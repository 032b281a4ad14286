"""Between two commands: what was added, written or taken away is known to the second, whatever wrote it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from store_records import make_record, write_folder

from trueup.store import Store


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the run folders that were read."""
    read: list[str] = []
    ingest = Store.ingest

    def noted(self: Store, folder: Path) -> str:
        read.append(folder.name)
        return ingest(self, folder)

    monkeypatch.setattr(Store, "ingest", noted)
    return read


def command(home: Path) -> list[str]:
    """The runs that a command sees, newest first."""
    with Store.open(home) as store:
        assert store.sync() == []
        return [run.name for run in store.runs()]


def add(home: Path, run_id: str, name: str, day: int = 1) -> Path:
    return write_folder(home, *make_record(run_id, name, started_at=f"2026-11-{day:02}T00:00:00+00:00"))


def test_a_run_added_between_two_commands_is_listed(tmp_path: Path) -> None:
    add(tmp_path, "aa01", "first", 1)
    assert command(tmp_path) == ["first"]
    add(tmp_path, "bb02", "second", 2)
    assert command(tmp_path) == ["second", "first"]


def test_a_run_that_replaced_another_between_two_commands_is_listed_in_its_place(tmp_path: Path) -> None:
    add(tmp_path, "aa01", "first")
    assert command(tmp_path) == ["first"]
    shutil.rmtree(tmp_path / "runs" / "aa01")
    add(tmp_path, "aa01", "another")
    assert command(tmp_path) == ["another"]


def test_a_run_removed_between_two_commands_stays_in_the_index(tmp_path: Path) -> None:
    add(tmp_path, "aa01", "first", 1)
    add(tmp_path, "bb02", "second", 2)
    assert command(tmp_path) == ["second", "first"]
    shutil.rmtree(tmp_path / "runs" / "aa01")
    assert command(tmp_path) == ["second", "first"]


def test_two_homes_know_nothing_of_each_other(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    add(one, "aa01", "here")
    add(other, "aa01", "there")
    assert command(one) == ["here"]
    assert command(other) == ["there"]
    add(other, "bb02", "new", 2)
    assert command(one) == ["here"]
    assert command(other) == ["new", "there"]


@pytest.mark.parametrize(
    "file", ["run.json", "measurements.json", "segments.jsonl", "steps.jsonl", "events.jsonl"]
)
@pytest.mark.parametrize("state", ["finished", "failed", "stopped", "interrupted"])
def test_a_file_written_in_place_is_noticed(
    tmp_path: Path, read_again: list[str], state: str, file: str
) -> None:
    """The folder's own time does not change, and neither does the file's size."""
    folder = write_folder(tmp_path, *make_record(state=state), heartbeat_age_s=0)
    command(tmp_path)
    read_again.clear()
    before = folder.stat().st_mtime_ns
    text = (folder / file).read_bytes()
    with (folder / file).open("r+b") as stream:
        stream.write(text)
    os.utime(folder / file, (2_000_000_000, 2_000_000_000))
    assert folder.stat().st_mtime_ns == before
    command(tmp_path)
    assert read_again == [folder.name]


def test_nothing_is_read_again_for_a_heartbeat_after_the_end(tmp_path: Path, read_again: list[str]) -> None:
    folder = write_folder(tmp_path, *make_record(), heartbeat_age_s=60)
    command(tmp_path)
    (folder / "heartbeat").touch()
    command(tmp_path)
    assert read_again == [folder.name]


def test_a_run_taken_for_dead_whose_heart_beats_again_is_running(tmp_path: Path) -> None:
    """A machine that slept: nothing but the heartbeat is written."""
    folder = write_folder(
        tmp_path, *make_record(state="running", wall_s=None, ended_at=None), heartbeat_age_s=3600
    )
    with Store.open(tmp_path) as store:
        store.sync()
        assert [run.state for run in store.runs()] == ["interrupted"]
    (folder / "heartbeat").touch()
    with Store.open(tmp_path) as store:
        store.sync()
        assert [run.state for run in store.runs()] == ["running"]


def test_a_file_that_is_gone_is_noticed(tmp_path: Path, read_again: list[str]) -> None:
    folder = write_folder(tmp_path, *make_record(), heartbeat_age_s=0)
    command(tmp_path)
    read_again.clear()
    (folder / "events.jsonl").unlink()
    command(tmp_path)
    assert read_again == [folder.name]
