"""Sums over a run's steps. Standard library only: the bill reads these too, and must start quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trueup.schema import RunRecord, Step


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


def split_repeated(steps: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """(steps that stand, steps that do not), each in the order they were done, which is that of `steps`.

    A step that is not above the one done before it means that the run had gone back, to a checkpoint: nothing
    done before with its number or a later one stands, whether it is done again or not. A step whose update
    was left out taught nothing. Steps alone do not tell that a run went back and then did no further step.
    """
    standing: list[int] = []  # indices; their step numbers only rise
    for index, step in enumerate(steps):
        while standing and steps[standing[-1]].step >= step.step:
            standing.pop()
        standing.append(index)
    stands = {index for index in standing if not steps[index].skipped}
    stand = [step for index, step in enumerate(steps) if index in stands]
    lost = [step for index, step in enumerate(steps) if index not in stands]
    return stand, lost


def seconds_of(step: Step) -> float:
    """What a step cost in wall clock: its own time, the wait for its data, and communication not hidden."""
    return step.step_s + step.data_wait_s + step.communication_s


def totals(steps: Sequence[Step]) -> Totals:
    """Sums over the steps in the order they were done."""
    stand, lost = split_repeated(steps)
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


def world_size(record: RunRecord) -> int:
    """Ranks of the run: `environment.world.size`, or one where it is not recorded."""
    world = record.header.environment.get("world")
    size = world.get("size") if isinstance(world, Mapping) else None
    return size if isinstance(size, int) and size > 0 else 1
