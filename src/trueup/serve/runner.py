"""The seam between the engine and a model: who runs a step. B rows, N slots, V vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from trueup.model.step_batch import StepBatch


class Runner(Protocol):
    """A model with a KV pool of its own. After `run` raised, the slots it was to write may hold anything;
    the engine has them cleared."""

    def run(self, batch: StepBatch) -> torch.Tensor:
        """(B, V) fp32 logits of each row's last new token."""
        ...

    def clear(self, slots_N: torch.Tensor) -> None:
        """Zeroes these slots. They may hold a NaN, which would reach whoever has their block next even from a
        place that it does not attend to: a weight of 0 times NaN is NaN."""
        ...
