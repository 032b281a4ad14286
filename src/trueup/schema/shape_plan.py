"""The shape plan: the finite set of shapes a job will show its device, and why these."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from .measurement import Frozen

Strategy = Literal["pack", "bucket", "max", "longest"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CompileMode = Literal["none", "layer", "model"]
Shape = tuple[int, int]  # (rows, width): rows of one micro-batch, tokens in each, padding included


class Alternative(Frozen):
    """One strategy under one compile mode: what it would cost, and why it was taken or not.

    `padding_share` is of processed tokens, `head_padding_share` of the rows that go through the head, both of
    one epoch. `total_s` is of the whole job's steps, with `compile_s` and one warm-up pass of each shape.
    None where it cannot be done or the platform profile lacks the figure; `verdict` says which.
    """

    strategy: Strategy
    compile: CompileMode
    full: tuple[Shape, ...] = ()
    shapes: int | None = None  # distinct ones, of training and evaluation
    padding_share: float | None = None
    head_padding_share: float | None = None
    compile_s: float | None = None
    total_s: float | None = None
    verdict: str


class ShapePlan(Frozen):
    """Chosen once, before the first step, and the same on every rank.

    `full` holds the shape of a full micro-batch: one for `pack`, `max` and `longest`, one for each bucket of
    `bucket`, narrow ones first. `training` and `evaluation` are all shapes that occur, short last batches
    among them; with `longest`, whose widths follow the data, only the largest. `static`: nothing else is ever
    shown to the device. Where the device itself takes static shapes only, rows go through the head in whole
    chunks of `chunk_rows`, as many as `head_rows` lists; elsewhere the head runs eagerly on the rows there
    are, and the list is empty. `data` is the digest of the lengths the plan was made for.
    """

    strategy: Strategy
    compile: CompileMode
    static: bool
    full: tuple[Shape, ...]
    training: tuple[Shape, ...]
    evaluation: tuple[Shape, ...]
    chunk_rows: int | None = None
    head_rows: tuple[int, ...] = ()
    tokens_per_microbatch: int
    multiple: int = 8  # the widths of `longest` are multiples of it
    micro_batches_per_step: int = Field(ge=1)
    steps_per_epoch: int = Field(ge=0)
    padding_share: float
    head_padding_share: float
    compile_s: float | None
    total_s: float | None
    data: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()

    @property
    def largest(self) -> Shape:
        """The training shape of most tokens, the widest of these."""
        return max(self.training, key=lambda shape: (shape[0] * shape[1], shape[1]))
