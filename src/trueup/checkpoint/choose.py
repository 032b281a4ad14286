"""Which of a run's checkpoints is meant: the best, the last, or one step's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trueup.schema import InputError

from .folder import best_of, checkpoints_of, folder_name, newest_whole, steps, verified
from .manifest import CheckpointManifest

BEST, LAST = "best", "last"


def chosen(run_folder: Path, which: str, say: Callable[[str], None]) -> tuple[Path, CheckpointManifest, str]:
    """(folder, manifest, BEST, LAST or 'weights') of a whole checkpoint: the best by evaluation or the last;
    a step's; for an empty `which` the best, else the last, which is said where the best is lost.

    Raises InputError where there is none, StorageError for a damaged one that was asked for by its step."""
    root = checkpoints_of(run_folder)
    if which.isdecimal():
        folder = root / folder_name(int(which))
        return folder, _of_step(root, int(which)), "weights"
    if which not in ("", BEST, LAST):
        raise InputError(f"give best, last or the step of a checkpoint, not {which!r}")
    best = None if which == LAST else best_of(root)
    if best is not None:
        return *best, BEST
    newest = None if which == BEST else newest_whole(root, say)
    if newest is None:
        raise InputError(
            f"run {run_folder.name} keeps no {which + ' ' if which else ''}weights here: they are kept from "
            "the first checkpoint on, and stay on the machine that trained them"
        )
    if which != LAST and newest[1].best_step is not None:
        say(f"note: the best weights, of step {newest[1].best_step}, are damaged or gone; these are the last")
    return *newest, LAST


def _of_step(root: Path, step: int) -> CheckpointManifest:
    kept = steps(root)
    if step not in kept:
        there = ", ".join(map(str, kept)) or "none"
        raise InputError(f"run {root.parent.name} has no checkpoint of step {step}; it has {there}")
    return verified(root / folder_name(step))
