"""A series of correlated values cut into levels and lines, where mean, spread or slope changes.

Optimal partitioning (Jackson et al. 2005), the exact dynamic program that PELT prunes: of all ways to cut the
series, the one with the smallest sum of costs. A piece is a level or a line, whichever explains it more
cheaply, so that a drift is one line and not a staircase of levels.

Arrays: `_N` one per value, `_C` one per candidate cut.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .correlation import lag_one_correlation, variance_inflation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SHORTEST = 5
_MOST_CANDIDATES = 200  # a longer series is cut on a grid, then each cut is moved to its best place
_ASSUMED_CORRELATION = 0.3
_SMALLEST_SPREAD = 0.002  # relative: finer differences between steps matter to nobody
_ROUNDING = 1e-6  # relative: the spread of equal times
_PRIOR_STEPS = 10  # what the spread of the whole series weighs in that of a piece, in steps
# In units of log n. BIC charges 1 a parameter: 3 for a level (mean, spread, place), 4 for a line. A line is
# charged one more, by bench/steady_detector.py: for less, a few dozen steps with a change pass for a slope.
_LEVEL_PENALTY = 3.0
_LINE_PENALTY = 5.0


class Segment(NamedTuple):
    """Values `start` to `end` (exclusive); `slope` a step is 0 for a level; `spread` is the standard
    deviation around the fit, at least that of equal values read with rounding."""

    start: int
    end: int
    mean: float
    slope: float
    spread: float

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def drift(self) -> float:
        """From one end to the other, in units of the values."""
        return self.slope * self.length


def segments(log_times_N: Floats) -> list[Segment]:
    """The pieces of at least five logarithms of times, in order and without gaps.

    Correlated values hold less evidence than as many independent ones, so a piece's likelihood is divided by
    the variance inflation, at first of an assumed correlation. If what the pieces leave over, each in units
    of its own spread, is more correlated than that, the series is cut again with what was found.
    """
    found = _cut(log_times_N, _ASSUMED_CORRELATION)
    rest = [(log_times_N[one.start : one.end] - _fitted(one)) / one.spread for one in found]
    correlation = lag_one_correlation(np.concatenate(rest))
    return found if correlation <= _ASSUMED_CORRELATION + 0.1 else _cut(log_times_N, correlation)


def _fitted(one: Segment) -> Floats:
    return one.mean + one.slope * (np.arange(one.length, dtype=np.float64) - (one.length - 1) / 2)


class _Cost:
    """Twice the negative log-likelihood of a piece plus its penalty, in O(1) from running sums.

    A short piece says little about its spread and could by chance seem to have almost none, which a
    likelihood rewards without bound: the spread of the whole series counts as `_PRIOR_STEPS` steps of each.
    """

    def __init__(self, values_N: Floats, correlation: float) -> None:
        n = len(values_N)
        # 80% of normal values are within 1.2816 deviations; changes of level are among the rest
        jumps = float(np.percentile(np.abs(np.diff(values_N)), 80)) / 1.2816
        self.unit = max(_SMALLEST_SPREAD, jumps / math.sqrt(2 * (1 - _ASSUMED_CORRELATION)))
        at, y = (np.arange(n) - (n - 1) / 2) / n, (values_N - values_N.mean()) / self.unit
        self._sums = np.zeros((5, n + 1))
        self._sums[:, 1:] = np.cumsum([at, at * at, y, y * y, at * y], axis=1)
        self._weight = 1 / variance_inflation(correlation)
        self._level, self._line = _LEVEL_PENALTY * math.log(n), _LINE_PENALTY * math.log(n)

    def residuals(self, start: Ints, end: Ints) -> tuple[Floats, Floats, Floats]:
        """Residual sums of squares of a level and of a line, in squared units, and the line's slope over
        the whole series' length, in units."""
        t, tt, y, yy, ty = self._sums[:, end] - self._sums[:, start]
        count = end - start
        level = np.maximum(yy - y * y / count, 0.0)
        slope = (ty - t * y / count) / (tt - t * t / count)
        line = np.maximum(level - slope * (ty - t * y / count), 0.0)
        return level, line, slope

    def both(self, start: Ints, end: Ints) -> tuple[Floats, Floats]:
        """Cost as a level and as a line."""
        level, line, _ = self.residuals(start, end)
        count = (end - start + _PRIOR_STEPS).astype(np.float64)
        scale = self._weight * count
        as_level = scale * np.log((level + _PRIOR_STEPS) / count) + self._level
        return as_level, scale * np.log((line + _PRIOR_STEPS) / count) + self._line

    def __call__(self, start: Ints, end: Ints) -> Floats:
        return np.minimum(*self.both(start, end))


def _cut(values_N: Floats, correlation: float) -> list[Segment]:
    n = len(values_N)
    cost = _Cost(values_N, correlation)
    grid = math.ceil(n / _MOST_CANDIDATES)
    edges = _refined(_partition(n, grid, cost), grid, cost)
    return [_segment(values_N, start, end, cost) for start, end in pairwise(edges)]


def _partition(n: int, grid: int, cost: _Cost) -> list[int]:
    """Edges of the cheapest partition with its cuts on the grid, 0 and n included."""
    gap = math.ceil(_SHORTEST / grid)  # in candidates
    candidates_C = np.append(np.arange(0, n - _SHORTEST + 1, grid), n)
    total_C = np.full(len(candidates_C), np.inf)
    total_C[0] = 0.0
    before = [0] * len(candidates_C)
    last = len(candidates_C) - 1
    for k in range(gap, last + 1):
        reach = k if k == last else k - gap + 1  # every candidate leaves a shortest piece before n
        starts = candidates_C[:reach]
        costs = total_C[:reach] + cost(starts, candidates_C[k : k + 1])
        before[k] = int(np.argmin(costs))
        total_C[k] = costs[before[k]]
    at, edges = last, [n]
    while at > 0:
        at = before[at]
        edges.append(int(candidates_C[at]))
    return edges[::-1]


def _refined(edges: list[int], grid: int, cost: _Cost) -> list[int]:
    """Each cut moved, within one grid step, to where it costs least."""
    moved = list(edges)
    for k in range(1, len(edges) - 1):
        left, right = moved[k - 1], edges[k + 1]
        places = np.arange(
            max(left + _SHORTEST, edges[k] - grid + 1), min(right - _SHORTEST, edges[k] + grid)
        )
        if len(places) > 1:
            costs = cost(np.array([left]), places) + cost(places, np.array([right]))
            moved[k] = int(places[np.argmin(costs)])
    return moved


def _segment(values_N: Floats, start: int, end: int, cost: _Cost) -> Segment:
    one = np.array([start]), np.array([end])
    as_level, as_line = cost.both(*one)
    level, line, slope = cost.residuals(*one)
    is_line = bool(as_line[0] < as_level[0])
    rss = float((line if is_line else level)[0]) * cost.unit**2
    per_step = float(slope[0]) * cost.unit / len(values_N) if is_line else 0.0
    mean = float(values_N[start:end].mean())
    return Segment(start, end, mean, per_step, max(_ROUNDING, math.sqrt(rss / (end - start))))
