"""A recipe's steps as a prediction sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trueup.schema import Measurement, ModelDims, Price

from .memory_plan import MemoryAsk, Policy
from .predict_terms import MicroBatchWork, Tuning

Lines = dict[str, Measurement]
StepWork = tuple[MicroBatchWork, ...]


@dataclass(frozen=True)
class Job:
    """A recipe's steps. `steps`: those of an epoch, all or evenly spread, each with the micro-batches of all
    ranks; `planned`: how many they stand for, None where they are all. `memory`: of the largest micro-batch.
    `compiles`: seconds of compiling of the whole run, 0 where nothing is; `compiled_ratio`: compiled over
    eager step time, None where nothing is compiled. `warmed_tokens`: sizes of micro-batches that are run
    before the first step; `ready_tokens`: of the largest for which products of the head are then compiled,
    whatever the data; `ready_attention`: how many products of attention are, in groups of `ready_places` at
    most. `no_price`: why there is none."""

    dims: ModelDims
    tuning: Tuning
    policy: Policy
    steps: Sequence[StepWork]
    memory: MemoryAsk
    compiles: Measurement
    compiled_ratio: Measurement | None = None
    checkpointing: bool = False
    ranks: int = 1
    price: Price | None = None
    no_price: str = "the recipe has no price: give price.usd_per_hour, or platform.instance"
    planned: int | None = None
    warmed_tokens: frozenset[int] = frozenset()
    ready_tokens: int = 0
    ready_attention: int = 0
    ready_places: int = 0

    @property
    def counted(self) -> str:
        """How many steps were looked at, and of how many."""
        of_all = self.planned is not None and self.planned > len(self.steps)
        return f"{len(self.steps)} of {self.planned:,}" if of_all else str(len(self.steps))


def predicted(value: float, unit: str, method: str) -> Measurement:
    """A line with its arithmetic."""
    return Measurement(value=value, unit=unit, kind="predicted", method=method)
