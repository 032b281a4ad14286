"""A planned micro-batch in smaller ones that hold the same examples in the same order: pure.

The loss of a global batch is a sum over its examples, so that the gradient does not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.data import PlannedBatch
from trueup.schema import Shape

Row = tuple[int, ...]


def within(
    batches: Iterable[PlannedBatch],
    tokens: int,
    lengths_N: NDArray[np.integer[Any]],
    *,
    multiple: int,
    shapes: Collection[Shape] | None = None,
) -> tuple[PlannedBatch, ...]:
    """Each micro-batch of more than `tokens` processed tokens cut until its pieces have no more, or cannot be
    cut again: no example is.

    `lengths_N` are tokens by example number; widths are multiples of `multiple` where that is no wider than
    before. `shapes` are all that the device may be shown, where only fixed ones may be.
    """
    return tuple(piece for batch in batches for piece in _within(batch, tokens, lengths_N, multiple, shapes))


def _within(
    batch: PlannedBatch,
    tokens: int,
    lengths_N: NDArray[np.integer[Any]],
    multiple: int,
    shapes: Collection[Shape] | None,
) -> Iterator[PlannedBatch]:
    if batch.processed_tokens <= tokens:
        yield batch
        return
    cut = _cut(batch, lengths_N, multiple) if shapes is None else _cut_to_shapes(batch, lengths_N, shapes)
    for piece in cut:
        if piece.processed_tokens < batch.processed_tokens:
            yield from _within(piece, tokens, lengths_N, multiple, shapes)
        else:
            yield piece


def _cut(batch: PlannedBatch, lengths_N: NDArray[np.integer[Any]], multiple: int) -> tuple[PlannedBatch, ...]:
    """Half of the rows each; of a single row, two rows of about half the tokens; of a single example, a row
    no wider than it needs."""
    rows = tuple(row for row in batch.rows if row)
    if len(rows) > 1:
        middle = (len(rows) + 1) // 2
        parts = [rows[:middle], rows[middle:]]
    else:
        parts = [(part,) for row in rows for part in _halves(row, lengths_N)]
    pieces = tuple(_batch(part, _width(part, batch.width, lengths_N, multiple), lengths_N) for part in parts)
    smaller = all(piece.processed_tokens < batch.processed_tokens for piece in pieces)
    return pieces if pieces and smaller else (batch,)


def _halves(row: Row, lengths_N: NDArray[np.integer[Any]]) -> tuple[Row, ...]:
    """The row's examples in two, where the longer part is shortest."""
    if len(row) < 2:
        return (row,)
    upto = np.cumsum(lengths_N[list(row)], dtype=np.int64)
    longer = np.maximum(upto[:-1], upto[-1] - upto[:-1])
    cut = int(np.argmin(longer)) + 1
    return row[:cut], row[cut:]


def _cut_to_shapes(
    batch: PlannedBatch, lengths_N: NDArray[np.integer[Any]], shapes: Collection[Shape]
) -> tuple[PlannedBatch, ...]:
    """The rows in the next lower height that the plan has for their width, the last piece filled up with
    empty rows."""
    heights = sorted(rows for rows, width in shapes if width == batch.width and rows < len(batch.rows))
    if not heights:
        return (batch,)
    half = (len(batch.rows) + 1) // 2
    height = max((one for one in heights if one <= half), default=heights[0])
    rows = [row for row in batch.rows if row]
    parts = [tuple(rows[first : first + height]) for first in range(0, len(rows), height)]
    filled = [(*part, *[()] * (height - len(part))) for part in parts]
    return tuple(_batch(part, batch.width, lengths_N) for part in filled)


def _width(rows: Sequence[Row], most: int, lengths_N: NDArray[np.integer[Any]], multiple: int) -> int:
    longest = max(_tokens(row, lengths_N) for row in rows)
    return min(most, -(-longest // multiple) * multiple)


def _batch(rows: tuple[Row, ...], width: int, lengths_N: NDArray[np.integer[Any]]) -> PlannedBatch:
    return PlannedBatch(rows, width, sum(_tokens(row, lengths_N) for row in rows))


def _tokens(row: Row, lengths_N: NDArray[np.integer[Any]]) -> int:
    return int(lengths_N[list(row)].sum(dtype=np.int64))
