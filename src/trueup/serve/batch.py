"""From rows to the tensors of a step. B rows, Q new tokens in each, W blocks of context in each."""

from __future__ import annotations

import torch

from trueup.model.step_batch import StepBatch

from .scheduler import Step


def assemble(step: Step, block_size: int) -> StepBatch:
    """By one tensor a field, not one a row and field: torch.tensor costs 5 µs whatever its size."""
    count, new, width = step.shape
    tokens, positions, slots, tables, lengths, last = [], [], [], [], [], []
    for row in step.rows:
        end = row.start + row.new
        own = range(row.start, end)
        blocks = row.table.blocks[: -(-end // block_size)]
        padding = [0] * (new - row.new)
        tokens.append(row.sequence.tokens[row.start : end] + padding)
        positions.append([*own, *padding])
        slots.append([blocks[at // block_size] * block_size + at % block_size for at in own] + padding)
        tables.append(blocks + [0] * (width - len(blocks)))
        lengths.append(end)
        last.append(row.new - 1)
    missing = count - len(step.rows)
    return StepBatch(
        tokens_BQ=torch.tensor(tokens + [[0] * new] * missing),
        positions_BQ=torch.tensor(positions + [[0] * new] * missing),
        slots_BQ=torch.tensor(slots + [[0] * new] * missing),
        tables_BW=torch.tensor(tables + [[0] * width] * missing),
        lengths_B=torch.tensor(lengths + [0] * missing),
        last_B=torch.tensor(last + [0] * missing),
    )
