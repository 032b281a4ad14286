"""Sums over a run's steps. Standard library only: the bill reads these too, and must start quickly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trueup.schema import RunRecord, Step

GOES_BACK = ("resume", "rollback")  # events; their `step` is the one that the run then stands at


class Totals(NamedTuple):
    """Token counts are of steps that stand; `all_processed_tokens` also counts those that do not."""

    useful_tokens: int
    supervised_tokens: int
    processed_tokens: int
    head_rows: int
    attention_sum_sq: int
    all_processed_tokens: int
    training_s: float  # step, data wait and communication, of every step done
    lost_s: float  # seconds of steps that do not stand

    @property
    def padding_share(self) -> float | None:
        """None where nothing was processed, or less than was useful: then a count is wrong."""
        if not 0 <= self.useful_tokens <= self.processed_tokens or self.processed_tokens == 0:
            return None
        return (self.processed_tokens - self.useful_tokens) / self.processed_tokens


def split_repeated(steps: Sequence[Step], went_back_to: float = math.inf) -> tuple[list[Step], list[Step]]:
    """(steps that stand, steps that do not), each in the order they were done, which is that of `steps`.

    A step that is not above the one done before it means that the run had gone back, to a checkpoint: nothing
    done before with its number or a later one stands, whether it is done again or not. A step whose update
    was left out taught nothing. Steps alone do not tell that a run went back and then did no further step:
    then none above `went_back_to` stands. See `steps_of`.
    """
    standing: list[int] = []  # indices; their step numbers only rise
    for index, step in enumerate(steps):
        while standing and steps[standing[-1]].step >= step.step:
            standing.pop()
        standing.append(index)
    stands = {n for n in standing if not steps[n].skipped and steps[n].step <= went_back_to}
    stand = [step for index, step in enumerate(steps) if index in stands]
    lost = [step for index, step in enumerate(steps) if index not in stands]
    return stand, lost


def steps_of(record: RunRecord) -> tuple[list[Step], list[Step]]:
    """`split_repeated` of a run, by its events too."""
    return split_repeated(record.steps, went_back_to(record))


def went_back_to(record: RunRecord) -> float:
    """The step that the run went back to after its last one, by a resume or a rollback; infinity where it did
    not."""
    last_s = record.steps[-1].start_s if record.steps else math.inf
    back = [
        event.data.get("step") for event in record.events if event.kind in GOES_BACK and event.at_s > last_s
    ]
    return min((step for step in back if isinstance(step, int)), default=math.inf)


def seconds_of(step: Step) -> float:
    """What a step cost in wall clock: its own time, the wait for its data, and communication not hidden."""
    return step.step_s + step.data_wait_s + step.communication_s


def totals(steps: Sequence[Step], went_back_to: float = math.inf) -> Totals:
    """Sums over the steps in the order they were done. See `totals_of`."""
    stand, lost = split_repeated(steps, went_back_to)
    return Totals(
        useful_tokens=sum(step.useful_tokens for step in stand),
        supervised_tokens=sum(step.supervised_tokens for step in stand),
        processed_tokens=sum(step.processed_tokens for step in stand),
        head_rows=sum(step.head_rows for step in stand),
        attention_sum_sq=sum(step.attention_sum_sq for step in stand),
        all_processed_tokens=sum(step.processed_tokens for step in steps),
        training_s=fsum(seconds_of(step) for step in steps),
        lost_s=fsum(step.step_s for step in lost),
    )


def totals_of(record: RunRecord) -> Totals:
    """`totals` of a run, by its events too."""
    return totals(record.steps, went_back_to(record))


def world_size(record: RunRecord) -> int:
    """Ranks of the run: `environment.world.size`, or one where it is not recorded."""
    world = record.header.environment.get("world")
    size = world.get("size") if isinstance(world, Mapping) else None
    return size if isinstance(size, int) and size > 0 else 1
