"""Disks that are full, read-only or gone: the older checkpoints are as they were, and nothing half-written
is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_records import contents, make_run, snapshot, tensors, write

from trueup.checkpoint.folder import newest_whole, steps, verified, write_checkpoint
from trueup.schema import StorageError

NUMBERS = 16384  # of each tensor: 64 KiB


def leave(disk: Path, kib: int) -> Path:
    """Fill a disk until so many KiB are left. Returns the file that fills it."""
    filler = disk / "filler"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    filler.write_bytes(b"\0" * (free - kib * 1024))
    return filler


@pytest.mark.parametrize("kib", [0, 4, 8, 40, 64, 68, 100, 132, 136, 140, 144, 148, 152])
def test_a_disk_that_is_full_at_any_point(disk: Callable[[str], Path], kib: int) -> None:
    place = disk("size=1m")
    root = make_run(place / "run") / "checkpoints"
    cache = place / "cache.zip"
    cache.write_bytes(b"compiled code" * 300)
    write(root, 20, value=1.0)
    before = contents(root)
    filler = leave(place, kib)
    record = (place / "run/run.json", place / "run/steps.jsonl")
    given = snapshot(40, tensors=tensors(2.0, NUMBERS), record=record, attached={"compile/cache.zip": cache})
    with pytest.raises(StorageError, match=r"step 40 could not be written.*No space left"):
        write_checkpoint(root, given)
    assert contents(root) == before
    assert os.listdir(root) == ["00000020"]
    filler.unlink()
    verified(write_checkpoint(root, given))
    assert steps(root) == [20, 40]


def test_a_full_disk_leaves_the_checkpoint_of_a_step_done_again(disk: Callable[[str], Path]) -> None:
    place = disk("size=1m")
    root = make_run(place / "run") / "checkpoints"
    write(root, 40, value=1.0)
    before = contents(root)
    leave(place, 12)
    with pytest.raises(StorageError):
        write_checkpoint(root, snapshot(40, tensors=tensors(2.0, NUMBERS)))
    assert contents(root) == before


def test_a_full_disk_leaves_no_empty_folder(disk: Callable[[str], Path]) -> None:
    place = disk("size=256k")
    run = make_run(place / "run")
    leave(place, 8)
    with pytest.raises(StorageError):
        write_checkpoint(run / "checkpoints", snapshot(40, tensors=tensors(2.0, NUMBERS)))
    assert not (run / "checkpoints").exists()


def test_a_read_only_disk(disk: Callable[[str], Path]) -> None:
    place = disk("size=1m")
    root = make_run(place / "run") / "checkpoints"
    write(root, 20)
    shutil.copytree(root / "00000020", root / "00000040.incomplete")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    with pytest.raises(StorageError, match="Read-only file system"):
        write_checkpoint(root, snapshot(40))
    found = newest_whole(root, pytest.fail)
    assert found is not None
    assert found[1].step == 20


def test_one_put_aside_on_a_read_only_disk_is_read_there(disk: Callable[[str], Path]) -> None:
    place = disk("size=1m")
    write(place, 20)
    (place / "00000020").rename(place / "00000020.replaced")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    found = newest_whole(place, pytest.fail)
    assert found is not None
    assert found[0] == place / "00000020.replaced"


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run / "checkpoints", 20)
    shutil.rmtree(run)
    with pytest.raises(StorageError, match=r"run is gone; it is not made again"):
        write_checkpoint(run / "checkpoints", snapshot(40))
    assert not run.exists()


def test_a_folder_of_checkpoints_that_is_gone_is_made_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run / "checkpoints", 20)
    shutil.rmtree(run / "checkpoints")
    write(run / "checkpoints", 40)
    assert steps(run / "checkpoints") == [40]


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(StorageError, match="step 40"):
        write_checkpoint(tmp_path / "checkpoints", snapshot(40))
    assert (tmp_path / "checkpoints").read_text() == "a file"
