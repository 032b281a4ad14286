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
    `multiple`, none above `budget`."""
    lengths_N = np.asarray(lengths, dtype=np.int64)
    longest = max(longest, int(lengths_N.max(initial=0)))
    if not longest:
        return []
    candidates_C, upto_C1 = _candidates(lengths_N, longest, multiple, budget)
    # cost_CC[c, b]: one bucket of width c for candidates b..c
    counts_CC = upto_C1[1:, None] - upto_C1[None, :-1]
    cost_CC = shape_s + passes * _bucket_seconds(counts_CC, candidates_C, budget, costs, static)
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
    """Candidate widths, ascending, and how many examples fit into fewer than each; one more for all."""
    while True:
        widths_N = np.minimum(-(-lengths_N // multiple) * multiple, budget)
        last = min(-(-longest // multiple) * multiple, budget)
        candidates_C = np.unique(np.append(widths_N, last))
        if len(candidates_C) <= MAX_CANDIDATES:
            break
        multiple *= 2
    counts_C = np.bincount(np.searchsorted(candidates_C, widths_N), minlength=len(candidates_C))
    return candidates_C, np.concatenate([[0], np.cumsum(counts_C)])


def _bucket_seconds(
    counts_CC: NDArray[np.int64], widths_C: NDArray[np.int64], budget: int, costs: Costs, static: bool
) -> NDArray[np.float64]:
    """Costs.of_batches for many counts at once."""
    heights_C = np.maximum(1, budget // widths_C)
    whole_CC, rest_CC = np.divmod(counts_CC, heights_C[:, None])
    if static:
        rest_CC = np.where(rest_CC > 0, heights_C[:, None], 0)
    full_C = costs.seconds(heights_C, widths_C)
    return whole_CC * full_C[:, None] + costs.seconds(rest_CC, widths_C[:, None])


def _chosen(candidates_C: NDArray[np.int64], choices: list[NDArray[np.int64]]) -> list[int]:
    at = len(candidates_C) - 1
    widths = [int(candidates_C[at])]
    for below_C in reversed(choices):
        if below_C[at] >= 0:
            at = int(below_C[at])
            widths.append(int(candidates_C[at]))
    return widths[::-1]
