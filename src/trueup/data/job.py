"""What a shape plan is for: the lengths of the data, and how much of it the job will train on.

Shapes: N examples.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trueup.recipe.models import TrainSection
from trueup.schema import InputError, PlatformProfile, ShapePlan

from .arrangement import Arrangement, arrange
from .epoch import Epoch
from .table import TokenTable


@dataclass(frozen=True, eq=False)
class JobData:
    """Token counts that a plan follows from: of every training example its length and how many of its tokens
    carry loss, and the lengths of the examples evaluated on."""

    lengths_N: NDArray[np.int32]
    supervised_N: NDArray[np.int32]
    evaluation_N: NDArray[np.int32]

    @cached_property
    def digest(self) -> str:
        """Of the lengths, training and evaluation: another digest is other data, and needs another plan."""
        found = hashlib.sha256()
        for lengths in (self.lengths_N, self.evaluation_N):
            found.update(f"{len(lengths)}:".encode())
            found.update(np.ascontiguousarray(lengths, dtype="<i4").tobytes())
        return found.hexdigest()[:32]

    @property
    def longest(self) -> int:
        return max(int(self.lengths_N.max(initial=0)), int(self.evaluation_N.max(initial=0)))

    @property
    def useful_tokens(self) -> int:
        """Of one epoch."""
        return int(self.lengths_N.sum(dtype=np.int64))

    def arranged(self, plan: ShapePlan) -> Arrangement:
        """The training examples in the plan's shapes. Raises InputError for a plan made for other data."""
        self._check(plan)
        return arrange(self.lengths_N, plan.strategy, plan.full, static=plan.static, multiple=plan.multiple)

    def evaluation(self, plan: ShapePlan) -> Epoch:
        """The evaluation's examples in the plan's shapes, in the same batches every time."""
        self._check(plan)
        found = arrange(
            self.evaluation_N, plan.strategy, plan.full, static=plan.static, multiple=plan.multiple
        )
        return found.epoch(seed=0, epoch=0)

    def _check(self, plan: ShapePlan) -> None:
        if plan.data != self.digest:
            raise InputError(
                f"this shape plan was made for other data (lengths {plan.data[:12]}, here "
                f"{self.digest[:12]}); plan again: trueup shapes plan RECIPE"
            )


def evaluated(table: TokenTable, max_tokens: int | None = None) -> NDArray[np.int64]:
    """Numbers of the examples to evaluate on, the same every time: the first ones in the order of their
    content whose lengths sum to at most `max_tokens` useful tokens, at least one where there is any."""
    order_N = table.content_order()
    if max_tokens is None or not len(order_N):
        return order_N
    upto_N = np.cumsum(table.lengths[order_N], dtype=np.int64)
    taken = int(np.searchsorted(upto_N, max_tokens, side="right"))
    return order_N[: max(1, taken)]


def job_tokens(
    train: TrainSection,
    epoch_tokens: int,
    profile: PlatformProfile | None = None,
    wall_s: float | None = None,
) -> float:
    """Useful tokens of a whole job if nothing were padded, the least that its limits allow. `wall_s` is its
    limit in seconds, from minutes or dollars; it counts where the profile knows what a token takes."""
    limits = [train.epochs * epoch_tokens]
    if train.max_steps is not None:
        limits.append(float(train.max_steps) * train.tokens_per_step)
    if train.stop.useful_tokens is not None:
        limits.append(float(train.stop.useful_tokens))
    if wall_s is not None and profile is not None and profile.token_s.value:
        limits.append(wall_s / profile.token_s.value)
    return min(limits)
