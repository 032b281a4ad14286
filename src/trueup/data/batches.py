"""Micro-batches: the arrays one forward pass takes. numpy only.

Shapes: B rows, T tokens a row, N supervised positions of the whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .epoch import PlannedBatch
from .table import TokenTable

IGNORED = -1  # target of a row that is there only to fill a chunk of the head


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """tokens_BT int64; positions_BT int64, from 0 in every example; segments_BT int32, 1..n within a row and
    0 for padding (attention stays within a segment); loss_BT bool, True where the token itself is a
    supervised target: never on padding, never on the first token of a segment."""

    tokens_BT: NDArray[np.int64]
    positions_BT: NDArray[np.int64]
    segments_BT: NDArray[np.int32]
    loss_BT: NDArray[np.bool_]
    example_ids: tuple[int, ...]
    attention_sum_sq: int  # sum of squared example lengths

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.tokens_BT.shape
        return rows, width

    @cached_property
    def useful_tokens(self) -> int:
        return int(np.count_nonzero(self.segments_BT))

    @cached_property
    def supervised_tokens(self) -> int:
        """Targets of this micro-batch; may be 0, in which case it adds nothing to the sum of the losses."""
        return int(np.count_nonzero(self.loss_BT))

    @property
    def processed_tokens(self) -> int:
        return self.tokens_BT.size

    def targets(self, chunk_rows: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows_N, target_ids_N): the hidden state at flat position rows_N[i] of B*T predicts
        target_ids_N[i], the next token of the same segment.

        With `chunk_rows` N is a multiple of it, at least one chunk: the last ones have row 0 and target
        IGNORED, go through the head and add nothing to the loss."""
        rows, columns = np.nonzero(self.loss_BT)
        rows_N, targets_N = rows * self.shape[1] + columns - 1, self.tokens_BT[rows, columns]
        if chunk_rows is None:
            return rows_N, targets_N
        more = int(head_rows(len(rows_N), chunk_rows)) - len(rows_N)
        return np.pad(rows_N, (0, more)), np.pad(targets_N, (0, more), constant_values=IGNORED)


@dataclass(frozen=True)
class TokenCounts:
    """Counts of a whole optimizer step, before any of its arrays exist. `supervised` is the loss denominator;
    where it is 0 there is nothing to learn and the step must not divide by it."""

    useful: int
    supervised: int
    head_rows: int
    processed: int
    attention_sum_sq: int


def head_rows(supervised: ArrayLike, chunk_rows: int | None) -> NDArray[np.int64]:
    """Rows through the head for so many supervised tokens of each micro-batch: as many, or in whole chunks,
    at least one of them."""
    supervised_B = np.asarray(supervised, dtype=np.int64)
    return supervised_B if chunk_rows is None else np.maximum(1, -(-supervised_B // chunk_rows)) * chunk_rows


def count_tokens(
    batches: Iterable[PlannedBatch], table: TokenTable, chunk_rows: int | None = None
) -> TokenCounts:
    """Counts over planned micro-batches, of all ranks: each rank knows the global denominator without
    asking. `chunk_rows` as in `targets`."""
    batches = tuple(batches)
    examples = np.asarray([n for batch in batches for n in batch.examples], dtype=np.int64)
    lengths = table.lengths[examples].astype(np.int64)
    supervised = [int(table.supervised[list(batch.examples)].sum(dtype=np.int64)) for batch in batches]
    return TokenCounts(
        useful=int(lengths.sum()),
        supervised=sum(supervised),
        head_rows=int(head_rows(supervised, chunk_rows).sum()),
        processed=sum(batch.processed_tokens for batch in batches),
        attention_sum_sq=int((lengths**2).sum()),
    )


def assemble(table: TokenTable, planned: PlannedBatch, pad_id: int) -> MicroBatch:
    """The arrays of a planned micro-batch."""
    shape = planned.shape
    tokens_BT = np.full(shape, pad_id, dtype=np.int64)
    positions_BT = np.zeros(shape, dtype=np.int64)
    segments_BT = np.zeros(shape, dtype=np.int32)
    loss_BT = np.zeros(shape, dtype=np.bool_)
    sum_sq = 0
    for b, row in enumerate(planned.rows):
        start = 0
        for segment, example in enumerate(row, start=1):
            tokens_T, loss_T = table.example(example)
            length = len(tokens_T)
            place = (b, slice(start, start + length))
            tokens_BT[place] = tokens_T
            positions_BT[place] = np.arange(length)
            segments_BT[place] = segment
            loss_BT[place] = loss_T
            loss_BT[b, start] = False
            sum_sq += length * length
            start += length
    return MicroBatch(tokens_BT, positions_BT, segments_BT, loss_BT, planned.examples, sum_sq)
