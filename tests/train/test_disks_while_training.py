"""Full and read-only disks, and a locked or missing database, while a run trains and saves: it goes on, what
was saved is intact, what failed is on record, and saves succeed again when they can."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from survivors import Runs, assert_whole, server, undisturbed

from trueup.checkpoint.folder import steps

Disk = Callable[[str], Path]
EVERY_STEP = ("checkpoint.every=1", "checkpoint.keep=20")

FILL = """
import os, sys
path, leave = sys.argv[1], int(sys.argv[2])
if os.path.exists(path):
    os.remove(path)
room = os.statvfs(os.path.dirname(path))
with open(path, "wb") as file:
    file.write(b"x" * max(0, room.f_bavail * room.f_frsize - leave))
"""


def on(place: Path, folder: Path, *overrides: str) -> Runs:
    """Runs whose home is a disk of its own."""
    shutil.copytree(server().template, place, dirs_exist_ok=True)
    return Runs(folder, *overrides, home=place)


def fill(place: Path, leave: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", FILL, str(place / "fill"), str(leave)]


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'


def read_only(place: Path) -> list[str]:
    """Over the disk, a read-only view of it: remounting itself is refused while the run has files open."""
    return ["sh", "-c", READ_ONLY, str(place)]


def writable(place: Path) -> list[str]:
    """After `read_only`."""
    return ["umount", "-l", str(place)]


def saves_of(runs: Runs) -> dict[str, list[int]]:
    """Steps by what became of their save."""
    found: dict[str, list[int]] = {"checkpoint": [], "checkpoint_failed": []}
    for event in runs.record().events:
        if event.kind in found:
            found[event.kind].append(event.data["step"])
    return found


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_a_disk_that_is_full_at_one_point_of_a_save_after_another(
    disk: Disk, tmp_path: Path, method: str
) -> None:
    """From the first byte to the last but some: the run is none the worse, and says so."""
    overrides = (f"tune.method={method}", *EVERY_STEP)
    place = disk("size=64m")
    runs = on(place, tmp_path, *overrides)
    largest = 40_000 if method == "lora" else 1_000_000
    leave = [0, 4096, largest // 8, largest // 4, largest // 2]
    commands: dict[str, Any] = {str(step): fill(place, room) for step, room in enumerate(leave, 3)}
    commands["8"] = ["rm", str(place / "fill")]
    done = runs.train(trouble={"commands_after": commands})
    assert done.code == 0, done.err
    assert "note: the checkpoint of step 3 could not be written" in done.err
    assert "No space left on device" in done.err
    assert runs.told() == undisturbed(*overrides)
    assert saves_of(runs) == {
        "checkpoint": [1, 2, 8, 9, 10, 11, 12],
        "checkpoint_failed": [3, 4, 5, 6, 7],
    }
    assert steps(runs.checkpoints()) == [1, 2, 8, 9, 10, 11, 12]
    (again,) = [
        one.message for one in runs.record().events if one.kind == "checkpoint" and one.data["step"] == 8
    ]
    assert again.endswith("the 5 saves before it had failed")
    assert_whole(runs)


def test_a_disk_that_stays_full(disk: Disk, tmp_path: Path) -> None:
    """The run ends, is told whole, and is not called whole; with room again it goes on from what was saved,
    to the same end."""
    place = disk("size=64m")
    runs = on(place, tmp_path)
    done = runs.train(
        "--json", trouble={"commands_after": {"5": fill(place, 0)}}, env={"TMPDIR": str(tmp_path)}
    )
    assert done.code == 1
    assert (
        done.document["state"],
        done.document["steps"][-1]["step"] if "steps" in done.document else 12,
    ) == (
        "finished",
        12,
    )
    assert "No space left on device" in done.err
    (place / "fill").unlink()
    assert steps(runs.checkpoints()) == [3, 4]
    (shown,) = runs.document("runs", "list")
    assert shown["state"] == "interrupted"
    again = runs.train("--resume", "auto")
    assert again.code == 0, again.err
    assert runs.told() == undisturbed()
    assert_whole(runs)


def test_a_disk_that_is_read_only_for_a_while(disk: Disk, tmp_path: Path) -> None:
    place = disk("size=64m")
    runs = on(place, tmp_path, *EVERY_STEP)
    commands = {"4": read_only(place), "7": writable(place)}
    trouble = {"commands_after": commands, "unwritable": [4, 7]}
    done = runs.train(trouble=trouble)
    assert done.code == 0, done.err
    assert "Read-only file system" in done.err
    assert runs.told() == undisturbed(*EVERY_STEP)
    assert saves_of(runs) == {"checkpoint": [1, 2, 3, 7, 8, 9, 10, 11, 12], "checkpoint_failed": [4, 5, 6]}
    assert_whole(runs)


@pytest.mark.slow
def test_a_disk_that_stays_read_only(disk: Disk, tmp_path: Path) -> None:
    """Resuming on it is refused before anything is touched; made writable, it goes on to the same end."""
    place = disk("size=64m")
    runs = on(place, tmp_path)
    trouble = {"commands_after": {"5": read_only(place)}, "unwritable": [5, 99]}
    done = runs.train(trouble=trouble, env={"TMPDIR": str(tmp_path)})
    try:
        assert done.code == 1
        assert "Read-only file system" in done.err
        (shown,) = runs.document("runs", "list")
        assert shown["state"] == "interrupted"
        refused = runs.train("--resume", "auto")
        assert refused.code == 2
        assert "Read-only file system" in refused.err
    finally:
        subprocess.run(writable(place), check=True)
    assert runs.train("--resume", "auto").code == 0
    assert runs.told() == undisturbed()
    assert_whole(runs)


def test_a_full_disk_when_it_is_resumed(disk: Disk, tmp_path: Path) -> None:
    """Refused or gone through, the run's record and its checkpoints stay what they were."""
    place = disk("size=64m")
    runs = on(place, tmp_path)
    assert runs.train(trouble={"raise_in": 6}).code == 1
    before = {path: path.read_bytes() for path in runs.only.rglob("*.*") if path.is_file()}
    subprocess.run(fill(place, 0), check=True)
    done = runs.train("--resume", "auto", env={"TMPDIR": str(tmp_path)})
    assert done.code == 1
    assert "No space left on device" in done.err
    assert {path: path.read_bytes() for path in before} == before
    (place / "fill").unlink()
    assert runs.train("--resume", "auto").code == 0
    assert runs.told() == undisturbed()
    assert_whole(runs)


def test_a_locked_database(tmp_path: Path) -> None:
    """Neither training nor `--resume auto` needs it."""
    runs = Runs(tmp_path)
    assert runs.document("runs", "list") == []
    with closing(sqlite3.connect(runs.home / "trueup.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        quick = {"lock_timeout_s": 0.1}
        assert runs.train(trouble={**quick, "raise_in": 6}).code == 1
        refused = runs.train("--resume", "last", trouble=quick)
        assert refused.code == 1
        assert "locked by another process" in refused.err
        done = runs.train("--resume", "auto", trouble=quick)
        assert done.code == 0, done.err
        assert "note: not in the database yet" in done.err
        other.execute("ROLLBACK")
    assert runs.told() == undisturbed()
    assert_whole(runs)


@pytest.mark.slow
def test_a_missing_database(tmp_path: Path) -> None:
    """Taken away before, and in the middle of, a resumed run: it is built again from the folders."""
    runs = Runs(tmp_path)
    assert runs.train(trouble={"raise_in": 6}).code == 1
    files = [str(path) for path in runs.home.glob("trueup.sqlite*")]
    for path in files:
        Path(path).unlink()
    done = runs.train("--resume", "tiny", trouble={"commands_after": {"8": ["rm", "-f", *files]}})
    assert done.code == 0, done.err
    assert runs.told() == undisturbed()
    assert_whole(runs)
