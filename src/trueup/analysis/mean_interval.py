"""A mean of independent values with a 95% interval that stays where such a mean can be.

Student's t is symmetric about the mean, and of a share near 1 or a divergence near 0 it says what cannot be.
So it is taken where the mean has no bounds, by the delta method: on the logit of a mean between two bounds,
on the logarithm of one above 0. Of values that are all yes or no the interval is Wilson's (1927), which needs
no spread: 100 right answers of 100 are no proof that no answer is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .student import quantile

_NORMAL = 1.959963984540054  # 97.5% of the normal distribution lies below


class Average(NamedTuple):
    """`ci` is None where it cannot be told; `how` names the interval."""

    value: float
    ci: tuple[float, float] | None
    how: str = ""


def mean_of(values: Sequence[float]) -> Average:
    """Of values without bounds: Student's t."""
    mean, reach = _mean(values), _reach(values)
    return Average(mean, None if reach is None else (mean - reach, mean + reach), "Student's t")


def mean_between(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> Average:
    """Of values from `low` to `high`: their interval is inside as well. None of values all alike, which show
    no spread, unless they are yes or no, as 1 and 0."""
    mean = _mean(values)
    if (low, high) == (0.0, 1.0) and len(values) > 1 and set(values) <= {0.0, 1.0}:
        return share_of(round(math.fsum(values)), len(values))
    reach = _reach(values)
    if not reach or not low < mean < high:
        return Average(mean, None)
    share = (mean - low) / (high - low)
    centre, far = math.log(share / (1 - share)), reach / (high - low) / (share * (1 - share))
    ends = (low + (high - low) * _expit(centre + side * far) for side in (-1, 1))
    return Average(mean, (next(ends), next(ends)), "Student's t on the logit")


def share_of(count: int, n: int) -> Average:
    """Of so many that are, of n > 0 independent ones."""
    return Average(count / n, _wilson(count / n, n), "Wilson's")


def mean_above_zero(values: Sequence[float]) -> Average:
    """Of values that are 0 or more."""
    mean, reach = _mean(values), _reach(values)
    if not reach or mean <= 0:
        return Average(mean, None)
    factor = math.exp(min(700.0, reach / mean))
    return Average(mean, (mean / factor, mean * factor), "Student's t on the logarithm")


def ratio_of_logs(logs: Sequence[float]) -> Average:
    """e to the mean of logarithms, and the interval likewise."""
    found = mean_of(logs)
    ci = None if found.ci is None else (exp_of(found.ci[0]), exp_of(found.ci[1]))
    return Average(exp_of(found.value), ci, found.how)


def exp_of(value: float) -> float:
    """Infinite where it does not fit."""
    return math.exp(value) if value < 700 else math.inf if not math.isnan(value) else math.nan


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _reach(values: Sequence[float]) -> float | None:
    """Half of Student's interval; None of fewer than two values, or where one is not finite."""
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    mean = _mean(values)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return quantile(n - 1, 0.975) * error


def _wilson(share: float, n: int) -> tuple[float, float]:
    z2 = _NORMAL**2
    centre = share + z2 / (2 * n)
    reach = _NORMAL * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    scale = 1 + z2 / n
    # At 0 and 1 the share is an end itself, which rounding must not carry past it.
    return max(0.0, min(share, (centre - reach) / scale)), min(1.0, max(share, (centre + reach) / scale))


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
