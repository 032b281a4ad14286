"""From rows to the tensors of a step. B rows, Q new tokens in each, W blocks of context in each."""

from __future__ import annotations

import torch

from .plan import StepShape
from .runner import StepBatch
from .scheduler import Step


def null_batch(shape: StepShape) -> StepBatch:
    """All padding: what a warm-up runs, and what `assemble` writes its rows over."""
    rows, new, blocks = shape
    return StepBatch(
        tokens_BQ=torch.zeros(rows, new, dtype=torch.int64),
        positions_BQ=torch.zeros(rows, new, dtype=torch.int64),
        slots_BQ=torch.zeros(rows, new, dtype=torch.int64),
        tables_BW=torch.zeros(rows, blocks, dtype=torch.int64),
        lengths_B=torch.zeros(rows, dtype=torch.int64),
        last_B=torch.zeros(rows, dtype=torch.int64),
    )


def assemble(step: Step, block_size: int) -> StepBatch:
    batch = null_batch(step.shape)
    for at, row in enumerate(step.rows):
        end = row.start + row.new
        needed_W = torch.tensor(row.table.blocks[: -(-end // block_size)])
        positions_N = torch.arange(row.start, end)
        batch.tokens_BQ[at, : row.new] = torch.tensor(row.sequence.tokens[row.start : end])
        batch.positions_BQ[at, : row.new] = positions_N
        batch.slots_BQ[at, : row.new] = needed_W[positions_N // block_size] * block_size + (
            positions_N % block_size
        )
        batch.tables_BW[at, : len(needed_W)] = needed_W
        batch.lengths_B[at] = end
        batch.last_B[at] = row.new - 1
    return batch
