"""One small packed batch to look at: several examples in each row, the same every time.

Shapes: N examples, B rows, T tokens a row.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from trueup.schema import InputError

from .batches import MicroBatch, assemble
from .epoch import PlannedBatch
from .job import evaluated
from .packing import packed
from .table import TokenTable

ROWS = 2
SEGMENTS = 3  # of a row of random tokens
LEAST_RANDOM = (2 * SEGMENTS + 1) * ROWS


def sample_of(table: TokenTable, pad_id: int, *, tokens: int) -> MicroBatch:
    """The table's first examples by content, at most `tokens` of them in sum and at least one example, packed
    into about two rows."""
    order_N = evaluated(table, tokens)
    lengths_N = table.lengths[order_N].astype(np.int64)
    width = max(int(lengths_N.max()), -(-int(lengths_N.sum()) // ROWS))
    by_row_N, starts_R1 = packed(lengths_N, width)
    falling_N = order_N[np.argsort(-lengths_N, kind="stable")]
    rows = tuple(
        tuple(int(n) for n in falling_N[by_row_N[first:last]]) for first, last in pairwise(starts_R1.tolist())
    )
    return assemble(table, PlannedBatch(rows, width, int(lengths_N.sum())), pad_id)


def random_sample(*, tokens: int, vocab: int, longest: int | None, seed: int) -> MicroBatch:
    """Random tokens of a vocabulary in two packed rows of three segments, none longer than `longest`; the
    second row ends in padding. Every token but the first of a segment is supervised."""
    if tokens < LEAST_RANDOM:
        raise InputError(f"{tokens} random tokens do not make packed rows; give at least {LEAST_RANDOM}")
    width = -(-tokens // ROWS)
    rng = np.random.default_rng(seed)
    shape = (ROWS, width)
    tokens_BT = rng.integers(0, vocab, shape)
    positions_BT = np.zeros(shape, dtype=np.int64)
    segments_BT = np.zeros(shape, dtype=np.int32)
    loss_BT = np.zeros(shape, dtype=np.bool_)
    sum_sq = 0
    for row in range(ROWS):
        start = 0
        for segment, end in enumerate(_ends(rng, width - row, longest), start=1):
            positions_BT[row, start:end] = np.arange(end - start)
            segments_BT[row, start:end] = segment
            loss_BT[row, start + 1 : end] = True
            sum_sq += (end - start) ** 2
            start = end
    tokens_BT[segments_BT == 0] = 0
    return MicroBatch(tokens_BT, positions_BT, segments_BT, loss_BT, (), sum_sq)


def _ends(rng: np.random.Generator, width: int, longest: int | None) -> list[int]:
    """Where the segments of a row end."""
    cuts = set((rng.choice(width // 2 - 1, SEGMENTS - 1, replace=False) * 2 + 2).tolist())
    ends: list[int] = []
    start = 0
    for end in sorted(cuts | {width}):
        while longest is not None and end - start > longest:
            start += longest
            ends.append(start)
        ends.append(end)
        start = end
    return ends
