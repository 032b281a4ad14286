"""Checkpoint folders to upload: files of random bytes, no tensors."""

from __future__ import annotations

import os
from pathlib import Path

from trueup.checkpoint.folder import write_checkpoint
from trueup.checkpoint.manifest import Origin
from trueup.checkpoint.snapshot import Snapshot
from trueup.schema import ShapePlan

RUN = "20261130-120000-abcd"
FILES = ("compile/cache.zip", "one.bin", "two.bin")  # and the manifest, in every checkpoint made here

_PLAN = ShapePlan(
    strategy="pack",
    compile="none",
    static=True,
    full=((1, 8),),
    training=((1, 8),),
    evaluation=(),
    tokens_per_microbatch=8,
    micro_batches_per_step=1,
    steps_per_epoch=1,
    padding_share=0.0,
    head_padding_share=0.0,
    compile_s=None,
    total_s=None,
    reason="a test",
    data="digest",
)
_ORIGIN = Origin(
    run=RUN,
    name="a run",
    started_at="2026-11-30T12:00:00+00:00",
    trueup_version="0",
    recipe={},
    recipe_digest="digest",
    choices={},
    shape_plan=_PLAN,
    data_digest="digest",
)


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
