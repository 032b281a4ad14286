"""Of a plan's steps as many are counted as are worth it, evenly spread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kept_checkpoints import PLAN
from trueup.data import PlannedBatch
from trueup.data.epoch import Lazy
from trueup.train.step_work import MOST_MICRO_BATCHES, MOST_STEPS, planned_work

TABLE: Any = SimpleNamespace(lengths=np.full(4, 20), supervised=np.full(4, 5))


def counted(*, per_step: int, planned: int, steps: int | None = None) -> tuple[list[int], list[int]]:
    """(numbers of the steps that were looked at, micro-batches that were counted of each)."""
    asked: list[int] = []

    def step(n: int) -> tuple[PlannedBatch, ...]:
        asked.append(n)
        return (PlannedBatch(((0, 1), (2, 3)), 40, 80),) * per_step

    plan = PLAN.model_copy(update={"micro_batches_per_step": per_step, "steps_per_epoch": planned})
    arranged: Any = SimpleNamespace(epoch=lambda *_: SimpleNamespace(steps=Lazy(planned, step)))
    found = planned_work(plan, arranged, TABLE, seed=0, attention="row", steps=steps)
    return asked, [len(one) for one in found]


def test_a_short_plan_is_counted_whole() -> None:
    assert counted(per_step=3, planned=7) == (list(range(7)), [3] * 7)


def test_only_the_steps_that_the_run_will_do_are_counted() -> None:
    assert counted(per_step=3, planned=7, steps=4)[0] == [0, 1, 2, 3]


def test_of_a_long_plan_so_many_steps_are_counted_from_the_first_to_the_last() -> None:
    asked, _ = counted(per_step=1, planned=10_000)
    assert len(asked) == MOST_STEPS
    assert (asked[0], asked[-1]) == (0, 9_999)


@pytest.mark.parametrize("per_step", [64, 512])
def test_many_micro_batches_a_step_cost_no_more(per_step: int) -> None:
    """Counting all of 64 a step took eleven seconds of the run."""
    asked, sizes = counted(per_step=per_step, planned=10_000)
    assert sum(sizes) == MOST_MICRO_BATCHES
    assert (asked[0], asked[-1]) == (0, 9_999)
    assert max(np.diff(asked)) <= 1 + min(np.diff(asked))


def test_one_step_is_counted_however_large_it_is() -> None:
    assert counted(per_step=MOST_MICRO_BATCHES + 1, planned=3)[1] == [MOST_MICRO_BATCHES + 1]
