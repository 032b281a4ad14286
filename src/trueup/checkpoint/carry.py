"""Checkpoints brought into the folder of their run, and left aside there when the run goes another way."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from trueup.files.whole import put_in_place
from trueup.schema import StorageError

from .folder import INCOMPLETE, clean_up, discard, folder_name, read_manifest, steps, verified

LEFT = ".left"


def copy_checkpoint(source: Path, root: Path) -> Path:
    """Copy a checkpoint into `root`, made if absent; one of the same step there gives way. Raises
    DamagedCheckpointError where the copy is not whole, StorageError as the disk does."""
    target = root / folder_name(read_manifest(source).step)
    part = root / f"{target.name}{INCOMPLETE}"
    try:
        discard(part, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, part)
        verified(part)
        put_in_place(part, target, replace=True)
    except OSError as error:
        raise StorageError(
            f"the checkpoint {source} could not be copied to {root}: {error.strerror or error}; make room "
            "or make the folder writable, and resume again"
        ) from None
    finally:
        discard(part, ignore_errors=True)
    return target


def leave_later(root: Path, step: int) -> list[int]:
    """Take the checkpoints after `step` out of the way: the run goes on from there, and nobody must resume
    from what it left. They stay beside as STEP.left until the run has saved a step as late, or the next time.
    Returns their steps. Raises StorageError. What killed writers left goes too: there may be no next save."""
    with contextlib.suppress(OSError):  # rubbish is no reason not to go on
        clean_up(root)
    later = [one for one in steps(root) if one > step]
    for aside in root.glob(f"*{LEFT}") if later else ():
        discard(aside, ignore_errors=True)
    for one in later:
        aside = root / f"{folder_name(one)}{LEFT}"
        try:
            (root / folder_name(one)).rename(aside)
        except OSError as error:
            raise StorageError(
                f"the checkpoint of step {one} in {root} cannot be left aside: {error.strerror or error}"
            ) from None
    return later


def left_up_to(root: Path, step: int) -> dict[int, Path]:
    """What `leave_later` left of steps up to this one, by step."""
    named = {aside.name.removesuffix(LEFT): aside for aside in sorted(root.glob(f"*{LEFT}"))}
    return {int(name): aside for name, aside in named.items() if name.isdecimal() and int(name) <= step}
