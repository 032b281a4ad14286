"""One step of serving as the model takes it: a batch in one fixed shape.

B rows, Q new tokens in each, W blocks of context in each.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def padding_batch(shape: tuple[int, int, int]) -> StepBatch:
    """(B, Q, W) of nothing but padding: what a warm-up runs."""
    rows, new, blocks = shape
    none_BQ, none_B = (torch.zeros(*size, dtype=torch.int64) for size in ((rows, new), (rows,)))
    return StepBatch(none_BQ, none_BQ, none_BQ, torch.zeros(rows, blocks, dtype=torch.int64), none_B, none_B)
