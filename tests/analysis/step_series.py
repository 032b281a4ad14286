"""Synthetic step times with a known steady part, over correlated noise.

Sizes are what somebody who pays for steps would care about, not what a detector likes: noise of 1 to 8% of
a step (log-uniform), changes of level and drifts of 5 to 100% (log-uniform in the logarithm). A change below
2.5 standard deviations of the noise is drawn again, because nobody can tell its place to 5 steps: maximum
likelihood that knows the correlation, and that there is exactly one change, does so for about 95% of
changes of 2 deviations and 98% of 2.5 (`bench/steady_detector.py`). A drift has at least 3 deviations from
end to end.

What the steady part is, is a rule, which `expected` states independently of the detector. Draws on which the
rule itself turns by a few steps are drawn again: a stretch within 5 steps of the fewest a steady part may
have, and a short end halfway between two levels.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CORRELATION = 0.3
SHORTEST = 10  # steps between two changes
FEWEST_DEVIATIONS = 2.5
FEWEST_DEVIATIONS_DRIFT = 3.0

KINDS = (
    "none",
    "one shift",
    "two shifts",
    "disturbance",
    "drift",
    "spikes",
    "compile",
    "compile and shift",
)


class Series(NamedTuple):
    kind: str
    times_s: NDArray[np.float64]
    start: int | None  # where the steady part begins; None: there is none
    end: int | None  # exclusive
    compiled: NDArray[np.bool_]  # steps slowed by a compile


def correlated_noise(rng: np.random.Generator, n: int, rho: float = CORRELATION) -> NDArray[np.float64]:
    """AR(1) of unit variance."""
    shocks = rng.standard_normal(n) * np.sqrt(1 - rho**2)
    out = np.empty(n)
    out[0] = rng.standard_normal()
    for k in range(1, n):
        out[k] = rho * out[k - 1] + shocks[k]
    return out


def make_series(
    rng: np.random.Generator,
    kind: str,
    *,
    steps: tuple[int, int] = (60, 500),
    rho: float = CORRELATION,
    hardest: float = np.inf,
) -> Series:
    """`hardest`: no change or drift is larger than this many standard deviations more than the fewest."""
    n = int(rng.integers(steps[0], steps[1] + 1))
    spread = float(np.exp(rng.uniform(np.log(0.01), np.log(0.08))))
    logs = np.log(rng.uniform(0.05, 3.0)) + spread * correlated_noise(rng, n, rho)
    start: int | None = 0
    end: int | None = n
    least = FEWEST_DEVIATIONS * spread, (FEWEST_DEVIATIONS + hardest) * spread
    if kind in ("one shift", "two shifts", "disturbance", "compile and shift"):
        edges, levels, (start, end) = _levels(rng, kind, n, least)
        logs += np.repeat(levels, np.diff(edges))
    if kind == "drift":
        least = FEWEST_DEVIATIONS_DRIFT * spread, (FEWEST_DEVIATIONS_DRIFT + hardest) * spread
        logs += _size(rng, least) * np.linspace(0, 1, n)
        start = end = None
    compiled = np.zeros(n, dtype=np.bool_)
    if kind == "spikes":
        logs[rng.random(n) < rng.uniform(0.005, 0.04)] += rng.uniform(0.3, 2.0)
    if kind.startswith("compile"):
        compiled[int(rng.integers(0, 8)) :: int(rng.integers(8, 41))] = True
        logs[compiled] += rng.uniform(0.5, 2.0)
    return Series(kind, np.exp(logs), start, end, compiled)


def expected(edges: list[int], levels: list[float]) -> tuple[int, int] | None:
    """The steady part of a series of levels, in logarithms: the last level held for at least 20 steps and a
    tenth of the series; but where that is slower than an earlier such level and what follows is nearer to
    the earlier one, then the earlier one. None where the draw does not decide."""
    needed = max(20, edges[-1] // 10)
    lengths = np.diff(edges)
    if np.any(np.abs(lengths - needed) <= 5):
        return None
    held = [k for k in range(len(levels)) if lengths[k] >= needed]
    if not held:
        return None
    last = held[-1]
    if last < len(levels) - 1 and len(held) > 1 and levels[held[-2]] < levels[last] - 0.01:
        way_back = (levels[last] - levels[-1]) / (levels[last] - levels[held[-2]])
        if 0.25 < way_back < 0.75:
            return None
        last = held[-2] if way_back > 0.5 else last
    return edges[last], edges[last + 1]


def _levels(
    rng: np.random.Generator, kind: str, n: int, size: tuple[float, float]
) -> tuple[list[int], list[float], tuple[int, int]]:
    """Edges, the levels between them and the steady part. A disturbance is slow and goes away again."""
    cuts = 2 if kind in ("two shifts", "disturbance") else 1
    while True:
        inner = sorted(int(at) for at in rng.integers(SHORTEST, n - SHORTEST + 1, size=cuts))
        edges = [0, *inner, n]
        if min(b - a for a, b in pairwise(edges)) < SHORTEST:
            continue
        jumps = [_size(rng, size) for _ in range(cuts)]
        if kind == "disturbance":
            jumps = [abs(jumps[0]), -abs(jumps[0])]
        levels = [0.0, *(float(level) for level in np.cumsum(jumps))]
        steady = expected(edges, levels)
        if steady is not None:
            return edges, levels, steady


def _size(rng: np.random.Generator, between: tuple[float, float]) -> float:
    while True:
        size = float(np.exp(rng.uniform(np.log(np.log(1.05)), np.log(np.log(2.0)))))
        if size >= between[0]:
            if size > between[1]:
                size = float(rng.uniform(*between))
            return size * float(rng.choice([-1, 1]))
