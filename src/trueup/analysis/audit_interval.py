"""Intervals of exact rationals: what a rounded figure can have been, and what can follow from it.

Ends are fractions, so nothing is rounded on the way: the range always contains the truth, and no choice of
unit moves an end. Numbers too long to be meant (2 ** 9999) are refused before they are computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

MOST_BITS = 4096  # of a numerator and denominator together; 200 digits of each are far beyond any figure
_ZERO = Fraction(0)


class TooLongError(Exception):
    """A number of more than MOST_BITS."""


class DivisorZeroError(Exception):
    """The divisor is zero, or `maybe`: within its rounding it may be. `figures` are those it rests on."""

    def __init__(self, *, maybe: bool, figures: Iterable[str] = ()) -> None:
        super().__init__()
        self.maybe = maybe
        self.figures = tuple(figures)


@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, both included."""

    low: Fraction
    high: Fraction

    @classmethod
    def exactly(cls, value: Fraction | int) -> Interval:
        return cls(Fraction(value), Fraction(value))

    @classmethod
    def hull(cls, *ends: Fraction) -> Interval:
        return cls(min(ends), max(ends))

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def middle(self) -> Fraction:
        return (self.low + self.high) / 2

    @property
    def width(self) -> Fraction:
        return self.high - self.low

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high

    def contains(self, value: Fraction | float) -> bool:
        return self.low <= value <= self.high

    def joined(self, other: Interval) -> Interval:
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def __add__(self, other: Interval) -> Interval:
        return _checked(Interval(self.low + other.low, self.high + other.high))

    def __sub__(self, other: Interval) -> Interval:
        return _checked(Interval(self.low - other.high, self.high - other.low))

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _checked(Interval.hull(*ends))

    def __truediv__(self, other: Interval) -> Interval:
        if other.contains(_ZERO):
            raise DivisorZeroError(maybe=not other.exact)
        return self * Interval(1 / other.high, 1 / other.low)

    def __pow__(self, exponent: int) -> Interval:
        if exponent < 0:
            return Interval.exactly(1) / self**-exponent
        if max(map(_bits, (self.low, self.high))) * exponent > MOST_BITS:
            raise TooLongError
        ends = [self.low**exponent, self.high**exponent]
        if exponent % 2 == 0 and exponent and self.contains(_ZERO):
            ends.append(_ZERO)
        return Interval.hull(*ends)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _checked(interval: Interval) -> Interval:
    if max(_bits(interval.low), _bits(interval.high)) > MOST_BITS:
        raise TooLongError
    return interval
