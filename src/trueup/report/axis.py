"""One direction of a plot: its limits in the data's unit, where a value lies between them, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # between ticks, times a power of ten
_ROUNDING = 1e-9  # a tick this part of the extent outside the limits is on them


@dataclass
class Axis:
    """`margin`: share of the data's extent that is left free at both ends. `low` and `high`, where set, are
    the limits themselves."""

    margin: float
    low: float | None = None
    high: float | None = None
    log: bool = False  # for data above zero
    whole: bool = False  # ticks at whole numbers only
    named: tuple[tuple[float, str], ...] | None = None  # ticks as given, instead of found ones
    _least: float = math.inf
    _most: float = -math.inf

    def hold(self, values: Iterable[float]) -> None:
        """Make room for these."""
        for value in values:
            self._least, self._most = min(self._least, value), max(self._most, value)

    def limits(self) -> tuple[float, float]:
        low, high = (self._least, self._most) if self._least <= self._most else (0.0, 1.0)
        if high - low <= _ROUNDING * max(abs(low), abs(high)):  # one value is in the middle
            around = abs(low) * 0.05 or 0.5
            low, high = low - around, high + around
        if self.log:
            stretch = (high / low) ** self.margin
            low, high = low / stretch, high * stretch
        else:
            extent = high - low
            low, high = low - self.margin * extent, high + self.margin * extent
        low, high = (low if self.low is None else self.low), (high if self.high is None else self.high)
        return (low, high) if high > low else (low, low + 1.0)

    def placing(self) -> Callable[[float], float]:
        """From a value to its place: 0 at the lower limit, 1 at the upper."""
        low, high = self.limits()
        if self.log:
            return lambda value: math.log(value / low) / math.log(high / low)
        return lambda value: (value - low) / (high - low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Round values within the limits and their text, about `most` or fewer."""
        if self.named is not None:
            return list(self.named)
        low, high = self.limits()
        if self.log:
            return _powers(low, high)
        step = _step((high - low) / max(1, most), whole=self.whole)
        slack = _ROUNDING * (high - low)
        first, last = math.ceil((low - slack) / step), math.floor((high + slack) / step)
        return [(n * step, _text(n * step, step)) for n in range(first, last + 1)]


def _step(least: float, *, whole: bool) -> float:
    """The smallest round step of at least this size."""
    least = max(least, 1.0) if whole else least
    power = 10.0 ** math.floor(math.log10(least))
    steps = (factor * power for factor in _STEPS if not whole or (factor * power).is_integer())
    return next(step for step in steps if step >= least * (1 - _ROUNDING))


def _powers(low: float, high: float) -> list[tuple[float, str]]:
    """1, 2 and 5 times powers of ten, or these powers alone where they are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    values = (factor * 10.0**power for power in powers for factor in factors)
    return [(value, f"{value:g}") for value in values if low <= value <= high]


def _text(value: float, step: float) -> str:
    """With as many decimals as the step has, so that all ticks have the same."""
    if step >= 1e7 or step < 1e-6:
        return f"{value:.4g}".replace("-", "−")
    decimals = next(d for d in range(9) if math.isclose(step * 10**d, round(step * 10**d), rel_tol=1e-6))
    return f"{value:,.{decimals}f}".replace("-", "−")
