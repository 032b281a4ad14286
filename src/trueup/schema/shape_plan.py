"""The shape plan: the finite set of shapes a job will show its device, and why these."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, computed_field, model_validator

from .choices import CompileMode
from .measurement import Frozen

Strategy = Literal["pack", "bucket", "max", "longest"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
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


_COMPUTED = ("padding_share", "head_padding_share", "compile_s", "total_s")


class ShapePlan(Frozen):
    """Chosen once, before the first step, and the same on every rank.

    `full` holds the shape of a full micro-batch: one for `pack`, `max` and `longest`, one for each bucket of
    `bucket`, narrow ones first. `training` and `evaluation` are all shapes that occur, short last batches
    among them; with `longest`, whose widths follow the data, only the largest. `static`: nothing else is ever
    shown to the device. Where the device itself takes static shapes only, rows go through the head in whole
    chunks of `chunk_rows`, as many as `head_rows` lists; elsewhere the head runs eagerly on the rows there
    are, and the list is empty. `data` is the digest of the lengths the plan was made for. Its shares and
    seconds are those of its strategy and compile mode among the `alternatives`, and None without them.
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
    data: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_computed(cls, given: Any) -> Any:
        """A stored plan also has what is computed from it."""
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if key not in _COMPUTED}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def padding_share(self) -> float | None:
        return None if self._chosen is None else self._chosen.padding_share

    @computed_field  # type: ignore[prop-decorator]
    @property
    def head_padding_share(self) -> float | None:
        return None if self._chosen is None else self._chosen.head_padding_share

    @computed_field  # type: ignore[prop-decorator]
    @property
    def compile_s(self) -> float | None:
        return None if self._chosen is None else self._chosen.compile_s

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_s(self) -> float | None:
        return None if self._chosen is None else self._chosen.total_s

    @property
    def _chosen(self) -> Alternative | None:
        own = (self.strategy, self.compile)
        return next((one for one in self.alternatives if (one.strategy, one.compile) == own), None)

    @property
    def largest(self) -> Shape:
        """The training shape of most tokens, the widest of these."""
        return max(self.training, key=lambda shape: (shape[0] * shape[1], shape[1]))
