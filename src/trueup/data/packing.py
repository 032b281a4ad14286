"""Packing examples into rows of one width: best-fit decreasing over the histogram of lengths.

Each example, the longest first, goes into the fullest row that still has room for it (D. S. Johnson,
Near-optimal bin packing algorithms, MIT thesis, 1973). Examples of one length are interchangeable, and so are
rows with equal room, so whole runs of them are placed at once: the work depends on how many lengths differ,
not on how many examples there are, and a million of them need one integer each.

The pattern of rows is the same in every epoch; which example of a length sits where is drawn anew.

Shapes: N examples, L distinct lengths.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trueup.schema import Shape

from .costs import Costs

SAMPLED = 50_000  # widths are compared on so many examples at most, evenly spaced by length
_NARROWER = 4  # so many multiples below the widest row that fits are compared with it


@dataclass
class _Rows:
    """Rows so far, as runs (first, end) of consecutive rows with equal room."""

    width: int
    shortest: int  # a row with less room than this takes no more
    count: int = 0
    _rooms: list[int] = field(default_factory=list)  # ascending, those that have runs
    _runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def take(self, length: int, wanted: int) -> tuple[int, int, int]:
        """(room, first, end) of the fullest rows that have room for `length`; new rows where none has, as
        many as `wanted` examples fill."""
        at = bisect_left(self._rooms, length)
        if at == len(self._rooms):
            first = self.count
            self.count += -(-wanted // (self.width // length))
            return self.width, first, self.count
        room = self._rooms[at]
        runs = self._runs[room]
        first, end = runs.pop()
        if not runs:
            del self._runs[room], self._rooms[at]
        return room, first, end

    def put(self, room: int, first: int, end: int) -> None:
        if first == end or room < self.shortest:
            return
        if room not in self._runs:
            self._runs[room] = []
            insort(self._rooms, room)
        self._runs[room].append((first, end))


def _placed(lengths_N: NDArray[np.int64], width: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Number of rows, and (first row, rows, examples put in each) in the order of falling lengths."""
    lengths_L, counts_L = np.unique(lengths_N, return_counts=True)
    rows = _Rows(width, int(lengths_L[0]) if len(lengths_L) else 1)
    placed: list[tuple[int, int, int]] = []
    for length, count in zip(lengths_L[::-1].tolist(), counts_L[::-1].tolist(), strict=True):
        left = count
        while left:
            room, first, end = rows.take(length, left)
            each = room // length
            filled = min(end - first, left // each)
            if filled:
                placed.append((first, filled, each))
                rows.put(room - each * length, first, first + filled)
                first, left = first + filled, left - filled * each
            if left and first < end:  # fewer than a row of this run would take
                placed.append((first, 1, left))
                rows.put(room - left * length, first, first + 1)
                first, left = first + 1, 0
            rows.put(room, first, end)
    return rows.count, placed


def rows_needed(lengths_N: NDArray[np.int64], width: int) -> int:
    """Rows of `width` that hold all examples, none of which may be longer than it."""
    return _placed(lengths_N, width)[0]


def packed(lengths_N: NDArray[np.int64], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(by_row_N, starts_R1). With the examples ordered by falling length, row r holds the examples at
    by_row_N[starts_R1[r] : starts_R1[r + 1]] of that order."""
    count, placed = _placed(lengths_N, width)
    row_N = np.concatenate(
        [np.repeat(np.arange(first, first + rows), each) for first, rows, each in placed]
        or [np.zeros(0, dtype=np.int64)]
    )
    starts_R1 = np.concatenate([[0], np.cumsum(np.bincount(row_N, minlength=count))]).astype(np.int64)
    return np.argsort(row_N, kind="stable"), starts_R1


def pack_shape(
    lengths_N: NDArray[np.int64],
    budget: int,
    longest: int,
    *,
    costs: Costs,
    multiple: int,
    static: bool,
    supervised: int = 0,
    chunk_rows: int | None = None,
) -> Shape:
    """(rows, width) of full micro-batches with the least seconds an epoch: one long row or several shorter
    ones, each no narrower than `longest` and no wider than all examples together need. `supervised`: tokens
    with loss, of all examples; `chunk_rows` as in Planner."""
    total = int(lengths_N.sum())
    needed = max(longest, min(budget, -(-total // multiple) * multiple))
    sampled_N = np.sort(lengths_N)[:: -(-len(lengths_N) // SAMPLED) or 1]
    best: tuple[float, Shape] | None = None
    height = budget // longest
    while height:
        widest = min(budget // height, needed)
        widest = max(longest, widest - widest % multiple)
        for width in range(widest, max(longest, widest - _NARROWER * multiple) - 1, -multiple):
            rows = rows_needed(sampled_N, width) * len(lengths_N) / max(1, len(sampled_N))
            seconds = float(
                costs.of_batches(
                    *(round(rows), height, width),
                    static=static,
                    supervised=supervised,
                    chunk_rows=chunk_rows,
                )
            )
            if best is None or seconds < best[0]:
                best = seconds, (height, width)
        height //= 2
    assert best is not None, "longest is at most the budget"
    return best[1]
