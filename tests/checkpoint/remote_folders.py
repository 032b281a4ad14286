"""Checkpoint folders to upload: files of random bytes, no tensors."""

from __future__ import annotations

import os
from pathlib import Path

from kept_checkpoints import ORIGIN
from trueup.checkpoint.folder import write_checkpoint
from trueup.checkpoint.snapshot import Snapshot

RUN = "20261130-120000-abcd"
FILES = ("compile/cache.zip", "one.bin", "two.bin")  # and the manifest, in every checkpoint made here

_ORIGIN = ORIGIN.model_copy(update={"run": RUN})


def save(root: Path, step: int, *, best: int | None = None, size: int = 3000, large: int = 0) -> Path:
    """A whole checkpoint; each has other bytes. `large`, where not 0, is the size of one.bin."""
    sources = root.parent / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (sources / Path(name).name).write_bytes(os.urandom(large if large and name == "one.bin" else size))
    return write_checkpoint(
        root,
        Snapshot(
            origin=_ORIGIN,
            step=step,
            best_step=best,
            eval_loss=None,
            why=("every",),
            state={},
            tensors={},
            attached={name: sources / Path(name).name for name in FILES},
        ),
    )


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
