"""Steps over a paged pool for tests: rows of tokens with blocks of their own, padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trueup.model.inference import InferenceModel
from trueup.model.step_batch import StepBatch

CLOSE = 1e-4  # two best logits nearer to each other than this may change places


@dataclass
class Row:
    """A sequence under way: its blocks, in the order of its tokens, and how many tokens the pool has."""

    blocks: list[int]
    done: int = 0


class Paged:
    """A model with a pool and rows whose blocks are scattered over it."""

    def __init__(
        self, model: InferenceModel, *, rows: int, block_size: int, context: int, seed: int = 0
    ) -> None:
        per_row = -(-context // block_size)
        self.model = model
        self.block_size = block_size
        self.pool = model.new_pool(1 + rows * per_row, block_size)
        order = torch.randperm(rows * per_row, generator=torch.Generator().manual_seed(seed)) + 1
        self.rows = [Row(part.tolist()) for part in order.view(rows, per_row)]

    def step(
        self, new: Sequence[Sequence[int]], *, shape: tuple[int, int, int] | None = None
    ) -> torch.Tensor:
        """(rows, V): each row's `new` tokens go on from where it is; padded to `shape`."""
        ends = [row.done + len(own) for row, own in zip(self.rows, new, strict=False)]
        blocks = -(-max(ends) // self.block_size)
        step = self._padded(new, shape or (len(new), max(map(len, new)), blocks))
        for row, own in zip(self.rows, new, strict=False):
            row.done += len(own)
        return self.model.run(step)[: len(new)]

    def slots(self, row: int, count: int) -> list[int]:
        """Where a row's first `count` tokens lie in the pool."""
        blocks, size = self.rows[row].blocks, self.block_size
        return [blocks[place // size] * size + place % size for place in range(count)]

    def _padded(self, new: Sequence[Sequence[int]], shape: tuple[int, int, int]) -> StepBatch:
        rows, width, blocks = shape
        tokens, positions, slots = (torch.zeros(rows, width, dtype=torch.int64) for _ in range(3))
        lengths, last = (torch.zeros(rows, dtype=torch.int64) for _ in range(2))
        tables = torch.zeros(rows, blocks, dtype=torch.int64)
        step = StepBatch(tokens, positions, slots, tables, lengths, last)
        for at, (row, own) in enumerate(zip(self.rows, new, strict=False)):
            places = torch.arange(row.done, row.done + len(own))
            needed = torch.tensor(row.blocks[: -(-(row.done + len(own)) // self.block_size)])
            step.tokens_BQ[at, : len(own)] = torch.tensor(own)
            step.positions_BQ[at, : len(own)] = places
            starts = needed[places // self.block_size] * self.block_size
            step.slots_BQ[at, : len(own)] = starts + places % self.block_size
            step.tables_BW[at, : len(needed)] = needed
            step.lengths_B[at] = row.done + len(own)
            step.last_B[at] = len(own) - 1
        return step


def sequences(count: int, lengths: Sequence[int], seed: int = 3) -> list[list[int]]:
    """Tokens of the tiny model's bytes; lengths are taken in turns."""
    draw = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 256, (lengths[number % len(lengths)],), generator=draw).tolist()
        for number in range(count)
    ]


@torch.no_grad()
def expected(base: Any, tokens: Sequence[int]) -> torch.Tensor:
    """(T, V) logits of transformers' own forward pass over a whole sequence."""
    logits_TV: torch.Tensor = base(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits_TV


def greedy(
    paged: Paged, prompts: Sequence[Sequence[int]], count: int
) -> tuple[list[list[int]], torch.Tensor]:
    """Tokens of each prompt, and how far the best logit of each was above the second, (prompts, count)."""
    logits_BV = paged.step(prompts)
    found: list[list[int]] = [[] for _ in prompts]
    margins = []
    for place in range(count):
        best = logits_BV.topk(2)
        margins.append(best.values[:, 0] - best.values[:, 1])
        for own, token in zip(found, best.indices[:, 0].tolist(), strict=True):
            own.append(token)
        if place + 1 < count:
            logits_BV = paged.step([[own[-1]] for own in found])
    return found, torch.stack(margins, dim=1)


def differences(
    found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]], margins: torch.Tensor
) -> tuple[int, int]:
    """(sequences that part where the choice was clear, sequences that part at a close call)."""
    clear = close = 0
    for own, other, margin in zip(found, wanted, margins, strict=True):
        places = [at for at, (a, b) in enumerate(zip(own, other, strict=True)) if a != b]
        if places:
            close += bool(margin[places[0]] < CLOSE)
            clear += bool(margin[places[0]] >= CLOSE)
    return clear, close
