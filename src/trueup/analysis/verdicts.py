"""Whether two groups of runs differ: the ratio of their means with its interval, and a verdict.

The unit is a run in a process of its own, never a step. Figures are compared by their logarithms: a ratio
is then a difference, and swapping the sides changes its sign and nothing else. Of runs that took turns on one
host the pairs are compared (paired t), of others the groups (Welch 1947). "The same" is shown by two
one-sided tests (Schuirmann 1987), not by the lack of a difference.

Holm's (1979) five lines are here, because statsmodels, which has them too, takes longer to load than a
comparison may take to answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import fsum
from typing import Literal, NamedTuple

from .student import below, noncentral_below, quantile

FEWEST = 3  # fewer runs than this on a side: no verdict
MARGIN = 1.02  # a ratio within this factor of one, either way, is "the same"
LEVEL = 0.05
POWER = 0.8
MOST_RUNS = 10_000  # more runs a side than this are not worth naming

Design = Literal["paired", "welch"]
Verdict = Literal["lower", "higher", "same", "undecided", "none"]

_FARTHEST = 700.0  # the exponential overflows beyond
_CERTAIN = 30.0  # a noncentrality from which a test cannot fail


class Estimate(NamedTuple):
    """The logarithm of a ratio of means. `spread` and `df_per_run` give error and degrees of freedom of n
    runs a side: spread / sqrt(n) and (n - 1) x df_per_run."""

    log_ratio: float
    error: float
    df: float
    design: Design
    n: tuple[int, int]
    spread: float
    df_per_run: float


class Mean(NamedTuple):
    """A geometric mean with its 95% interval over runs, None of a single run."""

    value: float
    ci: tuple[float, float] | None
    n: int


def geometric_mean(values: Sequence[float]) -> Mean:
    """Of positive values, one a run; Student's t on their logarithms."""
    logs = _logs(values)
    mean = fsum(logs) / len(logs)
    if len(logs) < 2:
        return Mean(math.exp(mean), None, len(logs))
    reach = quantile(len(logs) - 1, 1 - LEVEL / 2) * math.sqrt(_variance(logs) / len(logs))
    return Mean(math.exp(mean), _around(mean, reach), len(logs))


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where one more run's value lies with 95% probability, given two or more: Student's t, on logarithms
    where all values are positive."""
    positive = all(value > 0 for value in values)
    known = _logs(values) if positive else list(values)
    n, mean = len(known), fsum(known) / len(known)
    reach = quantile(n - 1, 1 - LEVEL / 2) * math.sqrt(_variance(known) * (1 + 1 / n))
    return _around(mean, reach) if positive else (mean - reach, mean + reach)


def paired(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """log(second / first) of pairs: the n-th of one with the n-th of the other. At least two pairs."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values cannot be paired with {len(second)}")
    ratios = [b - a for a, b in zip(_logs(first), _logs(second), strict=True)]
    n, variance = len(ratios), _variance(ratios)
    return Estimate(
        log_ratio=fsum(ratios) / n,
        error=math.sqrt(variance / n),
        df=float(n - 1),
        design="paired",
        n=(n, n),
        spread=math.sqrt(variance),
        df_per_run=1.0,
    )


def welch(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """log(second / first) of two groups that need have neither size nor spread in common. At least two runs
    in each, or in one, whose spread then stands for both."""
    a, b = _logs(first), _logs(second)
    spreads = [_variance(logs) for logs in (a, b) if len(logs) > 1]
    if not spreads:
        raise ValueError("one run on each side has no spread")
    var_a, var_b = spreads if len(spreads) == 2 else spreads * 2
    parts = (var_a / len(a), var_b / len(b))
    both = var_a + var_b
    df_per_run = both**2 / (var_a**2 + var_b**2) if both else 2.0
    below = fsum(part**2 / max(1, len(logs) - 1) for part, logs in zip(parts, (a, b), strict=True))
    return Estimate(
        log_ratio=fsum(b) / len(b) - fsum(a) / len(a),
        error=math.sqrt(fsum(parts)),
        df=fsum(parts) ** 2 / below if below else float(len(a) + len(b) - 2),
        design="welch",
        n=(len(a), len(b)),
        spread=math.sqrt(both),
        df_per_run=df_per_run,
    )


def interval(estimate: Estimate) -> tuple[float, float]:
    """The ratio's 95% interval."""
    reach = quantile(estimate.df, 1 - LEVEL / 2) * estimate.error
    return _around(estimate.log_ratio, reach)


def p_different(estimate: Estimate) -> float:
    """Of a ratio this far from one where it is one."""
    if estimate.error == 0:
        return 1.0 if estimate.log_ratio == 0 else 0.0
    return 2 * below(estimate.df, -abs(estimate.log_ratio) / estimate.error)


def p_same(estimate: Estimate) -> float:
    """Of a ratio this near to one where it is MARGIN or more away: the larger of two one-sided tests."""
    margin = math.log(MARGIN)
    if estimate.error == 0:
        return 0.0 if abs(estimate.log_ratio) < margin else 1.0
    return below(estimate.df, (abs(estimate.log_ratio) - margin) / estimate.error)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Adjusted so that each may be held against LEVEL though several were looked at."""
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    adjusted, largest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * probabilities[index]))
        adjusted[index] = largest
    return adjusted


def judge(estimates: Sequence[Estimate]) -> list[Verdict]:
    """A verdict on each; Holm over those that have enough runs for one. What is shown to be within MARGIN is
    the same, also where it is shown not to be exactly one."""
    able = [index for index, one in enumerate(estimates) if min(one.n) >= FEWEST]
    different = holm([p_different(estimates[index]) for index in able])
    same = holm([p_same(estimates[index]) for index in able])
    verdicts: list[Verdict] = ["none"] * len(estimates)
    for index, p_diff, p_equal in zip(able, different, same, strict=True):
        if p_equal < LEVEL:
            verdicts[index] = "same"
        elif p_diff < LEVEL:
            verdicts[index] = "lower" if estimates[index].log_ratio < 0 else "higher"
        else:
            verdicts[index] = "undecided"
    return verdicts


def runs_needed(estimate: Estimate, looks: int = 1) -> int | None:
    """Runs a side with which a verdict would be reached with probability POWER, if ratio and spread stay as
    seen; None where it is more than MOST_RUNS. `looks` comparisons share the level (Bonferroni)."""
    if _power(estimate, MOST_RUNS, looks) < POWER:
        return None
    low, high = FEWEST, MOST_RUNS  # power rises with n
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(estimate, middle, looks) >= POWER else (middle + 1, high)
    return low


def _power(estimate: Estimate, n: int, looks: int) -> float:
    """Probability that n runs a side show a difference or sameness. Of sameness a lower bound: the two
    one-sided tests fail together less often than their failures add up to."""
    error, df = estimate.spread / math.sqrt(n), (n - 1) * estimate.df_per_run
    if error == 0:
        return 1.0
    distance, margin = abs(estimate.log_ratio), math.log(MARGIN)
    different = _above(df, distance / error, quantile(df, 1 - LEVEL / looks / 2))
    one_sided = quantile(df, 1 - LEVEL / looks)
    near, far = ((margin - distance) / error, (margin + distance) / error)
    return max(different, _above(df, near, one_sided) + _above(df, far, one_sided) - 1)


def _above(df: float, noncentrality: float, t: float) -> float:
    """P(T > t) of Student's noncentral t."""
    if abs(noncentrality) > _CERTAIN:
        return 1.0 if noncentrality > 0 else 0.0
    return 1.0 - noncentral_below(df, noncentrality, t)


def _around(log: float, reach: float) -> tuple[float, float]:
    """The interval's ends; as far out as a number goes where two runs say next to nothing."""
    return math.exp(max(log - reach, -_FARTHEST)), math.exp(min(log + reach, _FARTHEST))


def _logs(values: Sequence[float]) -> list[float]:
    if not all(0 < value < math.inf for value in values):
        raise ValueError("a ratio needs positive, finite values")
    return [math.log(value) for value in values]


def _variance(logs: Sequence[float]) -> float:
    """With n - 1. Exactly zero of equal values, which fsum / n need not give."""
    if len(logs) < 2:
        raise ValueError(f"{len(logs)} runs have no spread")
    if min(logs) == max(logs):
        return 0.0
    mean = fsum(logs) / len(logs)
    return fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
