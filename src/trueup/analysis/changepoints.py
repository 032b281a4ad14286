"""Change points of mean and variance in a series of correlated values: PELT with a normal cost."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from ruptures.base import BaseCost
from ruptures.detection import Pelt

from .correlation import lag_one_correlation, variance_inflation

Floats = NDArray[np.float64]

_MIN_SEGMENT = 10
_LARGEST_GRID = 600  # candidate points; a longer series is cut on a grid, then each cut is refined
_ASSUMED_CORRELATION = 0.3


class NormalCost(BaseCost):  # type: ignore[misc]
    """Twice the negative log-likelihood of independent normals, in O(1) from running sums."""

    model = "normal_by_running_sums"
    min_size = _MIN_SEGMENT

    def fit(self, signal: Floats) -> NormalCost:
        centred = signal - signal.mean()
        self.signal = signal.reshape(-1, 1)
        self._sums: list[float] = np.concatenate([[0.0], np.cumsum(centred)]).tolist()
        self._squares: list[float] = np.concatenate([[0.0], np.cumsum(centred**2)]).tolist()
        # Without a floor a stretch of equal times (a coarse clock) would have a likelihood without bound.
        self._floor = 1e-3 * float(np.median(np.abs(np.diff(signal)))) ** 2 + 1e-12
        return self

    def error(self, start: int, end: int) -> float:
        count = end - start
        mean = (self._sums[end] - self._sums[start]) / count
        variance = (self._squares[end] - self._squares[start]) / count - mean * mean
        return count * math.log(max(variance, self._floor))


def change_points(values: Floats) -> list[int]:
    """Edges of the segments, 0 and len(values) included.

    The penalty is a little more than BIC's for three parameters a cut (mean, variance, place), and larger for
    correlated values: the correlation is taken from the residuals of a first segmentation.
    """
    n = len(values)
    grid = max(1, math.ceil(n / _LARGEST_GRID))
    edges = _segment(values, grid, _penalty(n, _ASSUMED_CORRELATION))
    correlation = _correlation(values, edges)
    if correlation > _ASSUMED_CORRELATION + 0.1:
        edges = _segment(values, grid, _penalty(n, correlation))
    return edges if grid == 1 else _refined(values, edges, grid)


def _penalty(n: int, correlation: float) -> float:
    return 4.0 * math.log(n) * variance_inflation(correlation)


def _segment(values: Floats, grid: int, penalty: float) -> list[int]:
    cuts = Pelt(custom_cost=NormalCost(), min_size=_MIN_SEGMENT, jump=grid).fit_predict(values, pen=penalty)
    return [0, *(int(cut) for cut in cuts)]


def _correlation(values: Floats, edges: list[int]) -> float:
    pieces = [values[a:b] - values[a:b].mean() for a, b in pairwise(edges)]
    return lag_one_correlation(np.concatenate(pieces))


def _refined(values: Floats, edges: list[int], grid: int) -> list[int]:
    """Each cut moved, within one grid step, to where it costs least."""
    cost = NormalCost().fit(values)
    moved = list(edges)
    for k in range(1, len(edges) - 1):
        left, right = moved[k - 1], edges[k + 1]
        low = max(left + _MIN_SEGMENT, edges[k] - grid)
        high = min(right - _MIN_SEGMENT, edges[k] + grid)
        candidates = range(low, high + 1) or range(edges[k], edges[k] + 1)
        moved[k] = min(candidates, key=lambda at: cost.error(left, at) + cost.error(at, right))
    return moved
