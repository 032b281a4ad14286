"""Student's t: probabilities, quantiles, and the noncentral one, which says how likely a test is to see a
difference.

scipy has all three, to more digits than these need; but loading it takes longer than a comparison may take to
answer. The tests hold these against scipy's, to 1e-11 and better.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import count

_TINY = 1e-300
_MOST_STEPS, _NEAR = 100, 1e-8  # of a search whose steps shrink by more than their square
_NOTHING = 1e-17  # a weight that ends a sum of weights up to 1
_LARGE = 10.0  # from here on the asymptotic series of ln Γ(a + ½) − ln Γ(a) is good to 1e-13
_SERIES = (-1 / 8, 1 / 192, -1 / 640, 17 / 14336, -31 / 18432)
# Between points of the sum: of a standard deviation, at most, and of where P(Z ≤ t S) changes.
_FINENESS, _COARSEST, _TURN = 0.5, 0.1, 0.4


def below(df: float, t: float) -> float:
    """P(T ≤ t), for df > 0."""
    tail = _tail(df, abs(t))
    return tail if t < 0 else 1.0 - tail


@lru_cache(maxsize=1024)
def quantile(df: float, p: float) -> float:
    """The t with P(T ≤ t) = p, for 0 < p < 1."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"a probability of {p} has no quantile")
    if p >= 0.5:
        return _upper(df, 1.0 - p)
    return -_upper(df, p)


def noncentral_below(df: float, noncentrality: float, t: float) -> float:
    """P(T ≤ t) of (Z + noncentrality) / S: the mean over S = sqrt(chi² / df) of P(Z ≤ t S − noncentrality).

    With u = ln S the density is smooth and falls off on both sides, so the trapezium rule is all but exact.
    """
    step = min(_FINENESS / math.sqrt(2.0 * df), _COARSEST, _TURN / (1.0 + abs(t)))
    whole = part = 0.0
    for direction in (1, -1):
        for n in count(0 if direction == 1 else 1):
            u = direction * n * step
            s = math.exp(u)
            weight = math.exp(df * (u - 0.5 * (s * s - 1.0)))
            whole += weight
            part += weight * 0.5 * math.erfc((noncentrality - t * s) / math.sqrt(2.0))
            if weight < _NOTHING:
                break
    return min(1.0, part / whole)


def _tail(df: float, t: float) -> float:
    """P(T > t) for t ≥ 0: half the incomplete beta function at df / (df + t²), of df / 2 and 1 / 2."""
    a, b, ratio = 0.5 * df, 0.5, t * t / df
    x, rest = 1.0 / (1.0 + ratio), ratio / (1.0 + ratio)
    front = math.sqrt(rest) * math.exp(_log_of_beta(a) - a * math.log1p(ratio))
    if x < (a + 1.0) / (a + b + 2.0):
        return 0.5 * front / a * _fraction(a, b, x)
    return 0.5 * (1.0 - front / b * _fraction(b, a, rest))


def _log_of_beta(a: float) -> float:
    """−ln B(a, ½)."""
    if a < _LARGE:
        return math.lgamma(a + 0.5) - math.lgamma(a) - 0.5 * math.log(math.pi)
    series = math.fsum(one / a ** (2 * n + 1) for n, one in enumerate(_SERIES))
    return 0.5 * math.log(a / math.pi) + series


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    found = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            found *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return found


def _upper(df: float, p: float) -> float:
    """The t ≥ 0 with P(T > t) = p, for 0 < p ≤ ½, by Halley's steps from its left, where the tail falls ever
    more slowly."""
    if p == 0.5:
        return 0.0
    t = 0.0
    while _tail(df, 2.0 * t + 1.0) > p:
        t = 2.0 * t + 1.0
    density_at_0 = math.exp(_log_of_beta(0.5 * df)) / math.sqrt(df)
    for _ in range(_MOST_STEPS):
        density = density_at_0 * math.exp(-0.5 * (df + 1.0) * math.log1p(t * t / df))
        newton = (_tail(df, t) - p) / density
        bend = 0.5 * newton * (df + 1.0) * t / (df + t * t)
        step = newton / max(0.5, 1.0 - bend)
        t += step
        if abs(step) <= _NEAR * t:  # the next one would change nothing that is known
            break
    return t
