"""What a checkpoint says of itself: whose it is, at which step, and the digest of every file in it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trueup.schema import Frozen, ShapePlan

FORMAT = 1
MANIFEST_FILE = "manifest.json"
WEIGHTS = "weights"  # stems of the tensor files
OPTIMIZER = "optimizer"
RANDOM = "random"


class FileDigest(Frozen):
    sha256: str
    bytes: int


class Origin(Frozen):
    """The run a checkpoint belongs to: what must be the same for going on to give the same result."""

    run: str
    name: str
    started_at: str  # of the run's first process
    trueup_version: str
    recipe: dict[str, Any]  # resolved
    recipe_digest: str
    choices: dict[str, dict[str, str]]
    shape_plan: ShapePlan
    data_digest: str


class CheckpointManifest(Frozen):
    """`files` names every file of the folder but this one, by its path below it. `state` is all that is not
    tensors: cursor, tally, random states of Python and numpy, loss scale, guard."""

    format: int = FORMAT
    origin: Origin
    step: int
    best_step: int | None  # the step whose checkpoint is the best by evaluation so far; may be this one
    eval_loss: float | None  # of the evaluation at this step, where there was one
    why: tuple[str, ...]  # every, minutes, best, last, asked, signal, guard
    created: str
    state: dict[str, Any]
    files: dict[str, FileDigest] = Field(default_factory=dict)
