"""Checkpoints made without a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trueup.checkpoint.folder import write_checkpoint
from trueup.checkpoint.manifest import WEIGHTS, Origin
from trueup.checkpoint.snapshot import Snapshot, copied
from trueup.schema import ShapePlan

if TYPE_CHECKING:
    from trueup.model.load import LoadedModel

PLAN = ShapePlan(
    strategy="pack",
    compile="none",
    static=True,
    full=((1, 96),),
    training=((1, 96),),
    evaluation=((1, 96),),
    tokens_per_microbatch=96,
    micro_batches_per_step=2,
    steps_per_epoch=10,
    data="d1",
    reason="a test",
)
ORIGIN = Origin(
    run="7f3a91c2",
    name="demo",
    started_at="2026-11-29T10:15:30+00:00",
    trueup_version="0.1.0",
    recipe={"name": "demo", "train": {"lr": 1e-4}},
    recipe_digest="0b5c",
    choices={"device": {"value": "cpu", "reason": "no accelerator was found"}},
    shape_plan=PLAN,
    data_digest="d1",
)


def keep(loaded: LoadedModel, root: Path, *, step: int = 20) -> Path:
    """The weights as a checkpoint of a run in `root`; its folder."""
    weights = {name: copied(parameter.detach()) for name, parameter in loaded.trainable}
    snapshot = Snapshot(ORIGIN, step, step, 1.5, ("best",), {}, {WEIGHTS: weights})
    return write_checkpoint(root, snapshot)
