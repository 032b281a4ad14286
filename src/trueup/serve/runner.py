"""The seam between the engine and a model: one step's batch in one fixed shape, and who runs it.

B rows, Q new tokens in each, W blocks of context in each, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StepBatch:
    """int64 tensors on the CPU, padded to one shape of the plan.

    The new tokens of row b stand first in its Q, at consecutive positions; the last of these is at
    `last_B[b]`. Their keys and values go to `slots_BQ` (block * block size + offset). They attend to what
    `tables_BW` names, its blocks in order, up to their own position; `lengths_B` counts the context with the
    new tokens. Padding: token 0 at position 0 into slot 0, that is block 0, which no table names; whole rows
    of it have length 0, and their logits are read by nobody. What padding writes is finite: tables are
    padded with block 0.
    """

    tokens_BQ: torch.Tensor
    positions_BQ: torch.Tensor
    slots_BQ: torch.Tensor
    tables_BW: torch.Tensor
    lengths_B: torch.Tensor
    last_B: torch.Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, Q, W)."""
        return (*self.tokens_BQ.shape, self.tables_BW.shape[1])


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
