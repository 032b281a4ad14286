"""Rates over a load's measured stretch, with intervals from its slices of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trueup.schema import Measurement, RequestResult
from trueup.schema.counting import counted

from .load_names import NO_INTERVAL, load_figure
from .statistics import INTERVAL_NEEDS, ratio_interval_within_run

SLICES = 40


class Stretch(NamedTuple):
    """From the first request due to the last end. `busy_s`: with a request in flight; `request_s`: summed
    over requests."""

    begin_s: float
    end_s: float
    busy_s: float
    request_s: float
    most_in_flight: int

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def stretch_of(asked: Sequence[RequestResult]) -> Stretch | None:
    """None where nothing was sent, or in no time."""
    if not asked:
        return None
    begin_s, end_s = min(one.due_s for one in asked), max(one.done_s for one in asked)
    if end_s <= begin_s:
        return None
    # an end before a start at the same instant: one took the other's place
    changes = sorted([(one.sent_s, 1) for one in asked] + [(one.done_s, -1) for one in asked])
    busy_s, in_flight, most, since = 0.0, 0, 0, begin_s
    for at_s, change in changes:
        busy_s += at_s - since if in_flight else 0.0
        in_flight, since = in_flight + change, at_s
        most = max(most, in_flight)
    request_s = math.fsum(one.done_s - one.sent_s for one in asked)
    return Stretch(begin_s, end_s, busy_s, request_s, most)


def rate(
    name: str, amounts: Sequence[tuple[float, float]], stretch: Stretch, what: str, *, n: int
) -> Measurement:
    """Σ amounts, of `n` requests, over the stretch. The interval is a block bootstrap over equal slices of
    the stretch, which are correlated: `within_run`."""
    total = math.fsum(amount for _, amount in amounts)
    ci, told = _interval(amounts, stretch, n)
    method = f"{what} over the whole stretch, its start and end included"
    ci_method = told if ci else None
    if ci is None:
        method += f"; {NO_INTERVAL}{told}"
    return load_figure(name, total / stretch.seconds, "measured", method, n=n, ci=ci, ci_method=ci_method)


def _interval(
    amounts: Sequence[tuple[float, float]], stretch: Stretch, n: int
) -> tuple[tuple[float, float] | None, str]:
    """With how it was made, or why there is none."""
    if n < INTERVAL_NEEDS:
        return None, f"of {counted(n, 'answer')}, and {INTERVAL_NEEDS} are needed"
    import numpy as np

    times, weights = zip(*amounts, strict=True)
    sums, _ = np.histogram(times, bins=SLICES, range=(stretch.begin_s, stretch.end_s), weights=weights)
    if (some := np.count_nonzero(sums)) < SLICES // 2:  # a resample without any would have no logarithm
        return (
            None,
            f"something came in {some} of {SLICES} equal slices of time, and {SLICES // 2} are needed",
        )
    found = ratio_interval_within_run(sums.tolist(), [stretch.seconds / SLICES] * SLICES)
    if found.ci is None or not all(map(math.isfinite, found.ci)):
        return None, "the slices of time differ by more than can be told"
    return found.ci, found.method.replace("steps", "slices of time")
