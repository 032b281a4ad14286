"""Where a run's step times are steady, or the verdict that they never are.

Steps with an event of their own (compile, checkpoint, evaluation, first sight of a shape) are set aside
first. The rest is cut where mean or variance changes: PELT (Killick et al. 2012) on log times with a normal
cost and a penalty that allows for correlated steps; below 60 such steps by MSER-5 (White 1997) instead. The
steady part is the last plateau that is long enough. A series that drifts has none: "no steady state" is an
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trueup.schema import Step

from .correlation import lag_one_correlation, variance_inflation

Floats = NDArray[np.float64]

STEADY, NO_STEADY_STATE, TOO_SHORT = "steady", "no steady state", "too short"
FEWEST = 20  # fewer unlabelled steps than this say nothing
PELT_FROM = 60
_SAME_LEVEL = 0.01  # two plateaus whose means differ by less are one: a choice of relevance, not of noise
_SAME_SPREAD = 3.0  # likewise for the ratio of their variances
_DRIFT_SHARE = 0.02  # total drift over the part, relative, that matters
_DRIFT_T = 4.0  # and how many standard errors it must be; 4 because the error is itself estimated
_CHANGE_T = 5.0  # standard errors for a change of level at the worst of many places
_ROUNDING = 1e-16  # a variance of log times: a relative spread of 1e-8
_BATCH = 5  # the 5 of MSER-5


class Plateau(NamedTuple):
    """Verdict over a series: `start` to `end` (exclusive) are indices, None where nothing is steady."""

    verdict: str
    start: int | None
    end: int | None
    method: str
    reason: str


def steady_part(steps: Sequence[Step]) -> dict[str, Any]:
    """The verdict on a run, as stored with it. `start_step` and `end_step` are step numbers, both inclusive;
    `n` counts the unlabelled steps between them."""
    plain = unlabelled(steps)
    found = find_plateau([step.step_s for step in plain])
    inside = found.start is not None and found.end is not None
    return {
        "verdict": found.verdict,
        "start_step": plain[found.start].step if found.start is not None else None,
        "end_step": plain[found.end - 1].step if found.end is not None else None,
        "n": found.end - found.start if inside else 0,  # type: ignore[operator]
        "method": found.method,
        "reason": found.reason,
    }


def unlabelled(steps: Sequence[Step]) -> list[Step]:
    """Steps in which nothing but a step happened."""
    return [step for step in steps if not step.labels and not step.skipped]


def steps_inside(steps: Sequence[Step], steady: Mapping[str, Any] | None) -> list[Step]:
    """The unlabelled steps of the steady part; empty where there is none."""
    if not steady or steady.get("verdict") != STEADY:
        return []
    return [step for step in unlabelled(steps) if steady["start_step"] <= step.step <= steady["end_step"]]


def find_plateau(step_times_s: Sequence[float]) -> Plateau:
    """The steady part of a series of positive step times, as indices into it."""
    n = len(step_times_s)
    if n < FEWEST:
        reason = f"{n} steps without an event of their own; at least {FEWEST} are needed"
        return Plateau(TOO_SHORT, None, None, "none", reason)
    times = np.asarray(step_times_s, dtype=np.float64)
    if not np.all(np.isfinite(times)) or np.any(times <= 0):
        return Plateau(NO_STEADY_STATE, None, None, "none", "a step time is zero, negative or not a number")
    logs, spikes = _without_spikes(np.log(times))
    aside = f"; {spikes} isolated slow or fast steps were set aside" if spikes else ""
    found = _by_mser(logs) if n < PELT_FROM else _by_pelt(logs)
    return found._replace(reason=found.reason + aside)


def _without_spikes(logs: Floats) -> tuple[Floats, int]:
    """Isolated outliers replaced by the median around them, which keeps level shifts in place."""
    reach = 5
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(logs, reach, mode="reflect"), 2 * reach + 1)
    middle = np.median(windows, axis=1)
    away = np.abs(logs - middle)
    scale = 1.4826 * float(np.median(away)) + 1e-9
    spikes = away > 5.0 * scale
    return np.where(spikes, middle, logs), int(spikes.sum())


def _by_pelt(logs: Floats) -> Plateau:
    from .changepoints import change_points  # loads scipy: left until a run is long enough to need it

    edges = change_points(logs)
    n, needed = len(logs), max(FEWEST, len(logs) // 10)
    method = "PELT on mean and variance of log step times"
    last = len(edges) - 2  # index of the last segment
    while last > 0 and edges[last + 1] - edges[last] < needed:
        last -= 1
    end = edges[last + 1]
    first = _joined(logs, edges, last)
    start = edges[first]
    if end - start < needed:
        reason = f"the level keeps changing: no plateau of {needed} steps"
        return Plateau(NO_STEADY_STATE, None, None, method, reason)
    drift = _drift(logs, edges, first, last)
    if drift is not None:
        return Plateau(NO_STEADY_STATE, None, None, method, drift)
    reason = f"level holds for {end - start} steps"
    if end < n:
        reason += f"; it changes again {n - end} steps before the end"
    return Plateau(STEADY, start, end, method, reason)


def _joined(logs: Floats, edges: list[int], last: int) -> int:
    """The first of the segments before `last` that are, for all that matters, the same plateau."""
    first = last
    tail = logs[edges[last] : edges[last + 1]]
    while first > 0:
        before = logs[edges[first - 1] : edges[first]]
        spread = max(before.var(), 1e-12) / max(tail.var(), 1e-12)
        if abs(before.mean() - tail.mean()) > _SAME_LEVEL or not 1 / _SAME_SPREAD < spread < _SAME_SPREAD:
            break
        first -= 1
    return first


def _drift(logs: Floats, edges: list[int], first: int, last: int) -> str | None:
    """Why the plateau is a slope, or None.

    PELT turns a slope into a staircase, and the last stair alone looks level. So a line is also laid through
    the plateau and the stairs before it: where it fits no worse than they do, it is a slope.
    """
    end = edges[last + 1]
    for begin in [first, *range(first - 1, -1, -1)]:
        part = logs[edges[begin] : end]
        slope, error, line_rss = _line(part)
        total = slope * len(part)
        if abs(total) < _DRIFT_SHARE or abs(slope) < _DRIFT_T * error:
            continue
        pieces = [logs[edges[k] : edges[k + 1]] for k in range(begin, first)] + [logs[edges[first] : end]]
        stairs_rss = sum(float(((piece - piece.mean()) ** 2).sum()) for piece in pieces)
        # Each stair beyond the first costs two parameters (level and place), the line one: BIC.
        allowance = (2 * (len(pieces) - 1) - 1) * np.log(len(part)) / len(part)
        if line_rss <= stairs_rss * np.exp(allowance):
            return f"step times drift by {100 * float(np.expm1(total)):+.1f}% over {len(part)} steps"
    return None


def _line(part: Floats) -> tuple[float, float, float]:
    """Slope per step, its standard error (for correlated residuals), and the residual sum of squares."""
    n = len(part)
    at = np.arange(n) - (n - 1) / 2
    span = float((at**2).sum())
    slope = float((at * part).sum()) / span
    rest = part - part.mean() - slope * at
    rss = float((rest**2).sum())
    inflate = np.sqrt(variance_inflation(lag_one_correlation(rest)))
    return slope, float(inflate * np.sqrt(rss / max(1, n - 2) / span)), rss


def _by_mser(logs: Floats) -> Plateau:
    """MSER-5: cut off as many leading batches of five as makes the standard error of the rest smallest.

    What is left must hold its level. Where it does not, more batches of the first quarter are cut off until
    it does: a slow start that is small beside the noise is not worth cutting by its error alone, and a drift
    does not end with the first quarter. At most half may be cut off, else there was too little to find a
    level in.
    """
    n = len(logs)
    count = n // _BATCH
    skipped = n - count * _BATCH
    means = logs[skipped:].reshape(count, _BATCH).mean(axis=1)
    most = count // 2
    # equal readings of a coarse clock: their variance is rounding, whose smallest value says nothing
    scores = [max(float(means[cut:].var()) / (count - cut), _ROUNDING) for cut in range(most + 1)]
    method = "MSER-5 on log step times"
    first_change: str | None = None
    best = int(np.argmin(scores))
    for cut in (best, *range(best + 1, count // 4 + 1)):
        start = skipped + cut * _BATCH if cut else 0
        change = _trend(logs[start:]) or _level_change(logs[start:])
        if change is None:
            return Plateau(STEADY, start, n, method, f"level holds for {n - start} steps")
        first_change = first_change or change
    return Plateau(NO_STEADY_STATE, None, None, method, first_change or "no level was found")


def _trend(part: Floats) -> str | None:
    slope, error, _ = _line(part)
    total = slope * len(part)
    if abs(total) < _DRIFT_SHARE or abs(slope) < _DRIFT_T * error:
        return None
    return f"step times drift by {100 * float(np.expm1(total)):+.1f}% over {len(part)} steps"


def _level_change(part: Floats) -> str | None:
    """The largest change of level with at least a batch on each side, if it is beyond chance and matters."""
    n = len(part)
    worst, shift = 0.0, 0.0
    for cut in range(_BATCH, n - _BATCH + 1):
        early, late = part[:cut], part[cut:]
        rest = np.concatenate([early - early.mean(), late - late.mean()])
        inflate = variance_inflation(lag_one_correlation(rest))
        error = float(np.sqrt(inflate * rest.var() * (1 / cut + 1 / (n - cut)))) + 1e-12
        change = float(late.mean() - early.mean())
        if abs(change) / error > worst:
            worst, shift = abs(change) / error, change
    if worst < _CHANGE_T or abs(shift) < _DRIFT_SHARE:
        return None
    return f"step times change by {100 * float(np.expm1(shift)):+.1f}% within the last {n} steps"
