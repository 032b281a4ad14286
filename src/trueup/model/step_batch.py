"""One step of serving as the model takes it: a batch in one fixed shape, and the same without its padding.

B rows, Q new tokens in each, W blocks of context in each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trueup.schema import TrueupError


@dataclass(frozen=True)
class StepBatch:
    """int64 tensors on the CPU, padded to one shape: of the plan, where padding is computed.

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

    @property
    def new_of_rows(self) -> torch.Tensor:
        """(B,): new tokens of each row, padding left out. A step of nothing else, which is a warm-up's, keeps
        all of it."""
        new_B = torch.where(self.lengths_B > 0, self.last_B + 1, 0)
        return new_B if new_B.any() else torch.full_like(new_B, self.shape[1])


@dataclass(frozen=True)
class PackedStep:
    """A step without its padding, for what needs no fixed shapes. C of the step's B rows, N new tokens of all
    of them, one row after another."""

    rows_C: torch.Tensor  # which of the B
    tokens_N: torch.Tensor
    positions_N: torch.Tensor
    slots_N: torch.Tensor
    tables_CW: torch.Tensor
    firsts_C: torch.Tensor  # of the N
    last_C: torch.Tensor  # likewise

    @classmethod
    def of(cls, step: StepBatch) -> PackedStep:
        new_B = step.new_of_rows
        kept_BQ = torch.arange(step.shape[1]) < new_B[:, None]
        rows_C = new_B.nonzero().flatten()
        ends_C = new_B[rows_C].cumsum(0)
        return cls(
            rows_C=rows_C,
            tokens_N=step.tokens_BQ[kept_BQ],
            positions_N=step.positions_BQ[kept_BQ],
            slots_N=step.slots_BQ[kept_BQ],
            tables_CW=step.tables_BW[rows_C],
            firsts_C=ends_C - new_B[rows_C],
            last_C=ends_C - 1,
        )

    def check_places(self, *, positions: int, slots: int, block_size: int) -> None:
        """Raises TrueupError for what is not there, where a program would read and write beyond it."""
        named = (self.positions_N, self.slots_N, self.tables_CW)
        reached = min(positions, self.tables_CW.shape[1] * block_size)
        for one, end in zip(named, (reached, slots, slots // block_size), strict=True):
            if int(one.amax()) >= end or int(one.amin()) < 0:
                raise TrueupError("a step names positions, slots or blocks that are not there")

    def of_all_rows(self, logits_CV: torch.Tensor, rows: int) -> torch.Tensor:
        """(B, V), of B = `rows`: zeros for those of padding."""
        if len(logits_CV) == rows:
            return logits_CV
        return logits_CV.new_zeros(rows, logits_CV.shape[1]).index_copy_(0, self.rows_C, logits_CV)


def padding_batch(shape: tuple[int, int, int]) -> StepBatch:
    """(B, Q, W) of nothing but padding: what a warm-up runs."""
    rows, new, blocks = shape
    none_BQ, none_B = (torch.zeros(*size, dtype=torch.int64) for size in ((rows, new), (rows,)))
    return StepBatch(none_BQ, none_BQ, none_BQ, torch.zeros(rows, blocks, dtype=torch.int64), none_B, none_B)
