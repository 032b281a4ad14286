"""Where a run's step times are steady, or the verdict that they never are.

Steps with an event of their own (compile, checkpoint, evaluation, first sight of a shape) are set aside
first. The logarithms of the rest are cut into levels and lines. The steady part is the last plateau that is
long enough; a slow stretch from which the run returns to an earlier, faster plateau is a disturbance, and
that plateau is taken. Where the last long stretch is a slope, or no plateau is long enough, there is none:
"no steady state" is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trueup.schema import Step

from .changepoints import Segment, segments

Floats = NDArray[np.float64]

STEADY, NO_STEADY_STATE, TOO_SHORT = "steady", "no steady state", "too short"
FEWEST = 20  # fewer unlabelled steps than this say nothing
_SAME_LEVEL = 0.01  # two plateaus whose means differ by less are one: a choice of relevance, not of noise
_SAME_SPREAD = 1.7  # likewise for the ratio of their standard deviations
_DRIFT_SHARE = 0.02  # total drift over a stretch, relative, that matters
_MOST_SPIKES = 0.2
_METHOD = "optimal partitioning of log step times into levels and lines"


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
    found = _plateau(logs)
    return found._replace(reason=found.reason + aside)


def _plateau(logs: Floats) -> Plateau:
    n = len(logs)
    needed = max(n // 10, min(FEWEST, n // 2))
    plateaus = _joined(segments(logs), logs)
    chosen = _chosen(plateaus, needed)
    if chosen is None:
        reason = f"the level keeps changing: no plateau of {needed} steps"
        return Plateau(NO_STEADY_STATE, None, None, _METHOD, reason)
    one = plateaus[chosen]
    if one.slope != 0:
        reason = f"step times drift by {_percent(one.drift)} over {one.length} steps"
        return Plateau(NO_STEADY_STATE, None, None, _METHOD, reason)
    return Plateau(STEADY, one.start, one.end, _METHOD, _reason(plateaus, chosen, needed, n))


def _without_spikes(logs: Floats) -> tuple[Floats, int]:
    """Isolated outliers replaced by the median around them, which keeps level shifts in place. Where they are
    many (steps of two kinds, say) they are no outliers but the spread itself, and stay."""
    reach = 5
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(logs, reach, mode="reflect"), 2 * reach + 1)
    middle = np.median(windows, axis=1)
    away = np.abs(logs - middle)
    scale = 1.4826 * float(np.median(away)) + 1e-9
    spikes = away > 5.0 * scale
    if spikes.mean() > _MOST_SPIKES:
        return logs, 0
    return np.where(spikes, middle, logs), int(spikes.sum())


def _chosen(plateaus: list[Segment], needed: int) -> int | None:
    """The last stretch of at least `needed` steps, or the faster one before it to which the run returns."""
    long = [k for k, one in enumerate(plateaus) if one.length >= needed]
    if not long:
        return None
    last = long[-1]
    later = plateaus[last + 1 :]
    for k in reversed(long[:-1]):
        between = (plateaus[k].mean + plateaus[last].mean) / 2
        if later and _faster(plateaus[k], plateaus[last]) and all(one.mean < between for one in later):
            return k
    return last


def _faster(one: Segment, other: Segment) -> bool:
    """Whether `one` is a level, and one below `other` by more than does not matter."""
    return one.slope == 0 and other.mean - one.mean > _SAME_LEVEL


def _joined(found: list[Segment], logs: Floats) -> list[Segment]:
    """Neighbours that are, for all that matters, the same plateau made one."""
    joined = [_without_small_drift(found[0])]
    for one in map(_without_small_drift, found[1:]):
        last = joined[-1]
        level = one.slope == 0 == last.slope and abs(one.mean - last.mean) <= _SAME_LEVEL
        if level and 1 / _SAME_SPREAD < one.spread / last.spread < _SAME_SPREAD:
            part = logs[last.start : one.end]
            spread = max(last.spread, one.spread)
            joined[-1] = Segment(last.start, one.end, float(part.mean()), 0.0, spread)
        else:
            joined.append(one)
    return joined


def _without_small_drift(one: Segment) -> Segment:
    return one if abs(one.drift) >= _DRIFT_SHARE else one._replace(slope=0.0)


def _percent(change: float) -> str:
    return f"{100 * float(np.expm1(change)):+.1f}%"


def _reason(plateaus: list[Segment], chosen: int, needed: int, n: int) -> str:
    one = plateaus[chosen]
    reason = f"level holds for {one.length} steps"
    faster = [other for other in plateaus[:chosen] if other.length >= needed and _faster(other, one)]
    if faster:
        best = min(faster, key=lambda other: other.mean)
        reason += (
            f", {_percent(one.mean - best.mean)} in step time from an earlier stretch of {best.length} steps"
            " (a neighbour or a throttle makes steps slower like this)"
        )
    if one.end < n:
        reason += f"; it changes again {n - one.end} steps before the end"
    return reason
