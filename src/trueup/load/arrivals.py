"""When requests are due. An open load's instants are all known before it begins: no answer moves the next.

Times are seconds since the load began.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice

from .trace import TraceRow


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Instants of a Poisson process of `rate` a second: independent, exponentially distributed gaps."""
    draw, at_s = random.Random(seed), 0.0
    while True:
        at_s += draw.expovariate(rate)
        yield at_s


def ramp(first: float, last: float, over_s: float, seed: int) -> Iterator[float]:
    """Instants of a Poisson process whose rate goes evenly from `first` to `last` a second in `over_s`
    seconds, where it ends.

    By the change of time that makes it one of rate 1: the n-th instant t solves first t + slope t² / 2 = the
    n-th instant of that one (Çinlar 1975).
    """
    slope = (last - first) / over_s
    for whole in poisson(1.0, seed):
        if whole > (first + last) / 2 * over_s:
            return
        yield (
            whole / first
            if slope == 0
            else (math.sqrt(max(0.0, first**2 + 2 * slope * whole)) - first) / slope
        )


def replayed(rows: Sequence[TraceRow], time_scale: float) -> list[float]:
    """The trace's own instants, the gaps between them times `time_scale`."""
    return [(row.at_s - rows[0].at_s) * time_scale for row in rows]


def until(instants: Iterator[float], count: int | None, duration_s: float | None) -> list[float]:
    """The first `count` instants, and those within `duration_s`, whichever ends first; at least one bound."""
    found = []
    for at_s in instants if count is None else islice(instants, count):
        if duration_s is not None and at_s > duration_s:
            break
        found.append(at_s)
    return found


def places(first: int, last: int, progress: float) -> int:
    """How many requests may be in flight when this part, 0 to 1, of the load is done: evenly from `first` to
    `last`, each number for as long as any other."""
    numbers = abs(last - first) + 1
    steps = min(numbers - 1, int(max(0.0, progress) * numbers))
    return first + (steps if last >= first else -steps)
