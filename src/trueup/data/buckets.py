"""Which few widths rows should have: exact dynamic programming over the histogram of lengths.

A bucket of width w holds the examples no longer than w and longer than the next narrower one; its
micro-batches have as many rows as the token budget allows, so that all are like work. More buckets pad less,
but each is one more shape to compile and to warm up, and leaves one more short micro-batch.

Shapes: N examples, C candidate widths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trueup.schema import Shape

from .costs import Costs

MAX_BUCKETS = 8
MAX_CANDIDATES = 512  # among more widths than this every second, fourth, ... multiple is a candidate


def bucket_widths(
    lengths: ArrayLike,
    budget: int,
    *,
    supervised: ArrayLike | None = None,
    chunk_rows: int | None = None,
    costs: Costs,
    passes: float = 1.0,
    shape_s: float = 0.0,
    multiple: int = 8,
    static: bool = False,
    longest: int = 0,
    most: int = MAX_BUCKETS,
) -> list[int]:
    """At most `most` widths, ascending, the last one for the longest example (and for `longest`), with the
    least seconds of `passes` epochs plus `shape_s` for each. Candidates are the lengths, rounded up to
    `multiple`, none above `budget`. `supervised`: tokens with loss of each example; `chunk_rows` as in
    Planner."""
    lengths_N = np.asarray(lengths, dtype=np.int64)
    longest = max(longest, int(lengths_N.max(initial=0)))
    if not longest:
        return []
    supervised_N = np.zeros_like(lengths_N) if supervised is None else np.asarray(supervised)
    candidates_C, at_N = _candidates(lengths_N, longest, multiple, budget)
    # [c, b]: one bucket of width c for candidates b..c
    counts_CC = _between(at_N, np.ones_like(lengths_N), len(candidates_C))
    supervised_CC = _between(at_N, supervised_N, len(candidates_C))
    widths_C1 = candidates_C[:, None]
    cost_CC = shape_s + passes * costs.of_batches(
        *(counts_CC, np.maximum(1, budget // widths_C1), widths_C1),
        static=static,
        supervised=supervised_CC,
        chunk_rows=chunk_rows,
    )
    cost_CC[np.triu_indices(len(candidates_C), 1)] = np.inf
    best_C, choices = cost_CC[:, 0], []
    for _ in range(1, min(most, len(candidates_C))):
        # candidates 0..b-1 in the buckets so far, b..c in one more
        with_CC = np.concatenate(
            [np.full((len(candidates_C), 1), np.inf), best_C[None, :-1] + cost_CC[:, 1:]], 1
        )
        below_C = np.argmin(with_CC, axis=1)
        better_C = with_CC[np.arange(len(candidates_C)), below_C]
        choices.append(np.where(better_C < best_C, below_C - 1, -1))
        best_C = np.minimum(best_C, better_C)
    return _chosen(candidates_C, choices)


def heights(widths: list[int], budget: int) -> list[Shape]:
    """The shape of a full micro-batch of each width."""
    return [(max(1, budget // width), width) for width in widths]


def _candidates(
    lengths_N: NDArray[np.int64], longest: int, multiple: int, budget: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Candidate widths, ascending, and for each example the place of the narrowest that holds it."""
    while True:
        widths_N = np.minimum(-(-lengths_N // multiple) * multiple, budget)
        last = min(-(-longest // multiple) * multiple, budget)
        candidates_C = np.unique(np.append(widths_N, last))
        if len(candidates_C) <= MAX_CANDIDATES:
            break
        multiple *= 2
    return candidates_C, np.searchsorted(candidates_C, widths_N)


def _between(at_N: NDArray[np.int64], values_N: NDArray[np.int64], candidates: int) -> NDArray[np.int64]:
    """(C, C), [c, b]: sum of the values of examples at the candidates b..c; below 0 where b > c."""
    sums_C = np.bincount(at_N, weights=values_N, minlength=candidates).astype(np.int64)
    upto_C1 = np.concatenate([[0], np.cumsum(sums_C)])
    between_CC: NDArray[np.int64] = upto_C1[1:, None] - upto_C1[None, :-1]
    return between_CC


def _chosen(candidates_C: NDArray[np.int64], choices: list[NDArray[np.int64]]) -> list[int]:
    at = len(candidates_C) - 1
    widths = [int(candidates_C[at])]
    for below_C in reversed(choices):
        if below_C[at] >= 0:
            at = int(below_C[at])
            widths.append(int(candidates_C[at]))
    return widths[::-1]
