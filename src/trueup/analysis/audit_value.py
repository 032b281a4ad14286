"""Ranges with their dimension and slopes, and what arithmetic makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

import pint

from trueup.schema import InputError

from .audit_interval import DivisorZeroError, Interval
from .audit_units import dims_text, no_dimension

_ZERO = Interval.exactly(0)
_ONE = Interval.exactly(1)


class UndecidedError(Exception):
    """Nothing follows: `missing` figures are not given, or for another `reason`."""

    def __init__(self, reason: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.missing = missing


@dataclass(frozen=True)
class Value:
    """A range in root units, its dimension, and the range of its slope by each figure it depends on."""

    interval: Interval
    dims: pint.Unit
    slopes: Mapping[str, Interval] = field(default_factory=dict)


def _sum(a: Value, b: Value) -> Value:
    _require_one_dimension("added", a, b)
    slopes = {name: _slope(a, name) + _slope(b, name) for name in {**a.slopes, **b.slopes}}
    return Value(a.interval + b.interval, a.dims, slopes)


def negated(a: Value) -> Value:
    return Value(-a.interval, a.dims, {name: -slope for name, slope in a.slopes.items()})


def _difference(a: Value, b: Value) -> Value:
    _require_one_dimension("subtracted or compared", a, b)
    return _sum(a, negated(b))


def _product(a: Value, b: Value) -> Value:
    slopes = {
        name: _slope(a, name) * b.interval + _slope(b, name) * a.interval for name in {**a.slopes, **b.slopes}
    }
    return Value(a.interval * b.interval, a.dims * b.dims, slopes)


def _quotient(a: Value, b: Value) -> Value:
    with _dividing_by(b):
        interval = a.interval / b.interval
    square = b.interval**2
    slopes = {
        name: (_slope(a, name) * b.interval - _slope(b, name) * a.interval) / square
        for name in {**a.slopes, **b.slopes}
    }
    return Value(interval, a.dims / b.dims, slopes)


def power(a: Value, exponent: int) -> Value:
    if exponent == 0:
        return Value(_ONE, no_dimension())
    with _dividing_by(a):
        outer = a.interval ** (exponent - 1) * Interval.exactly(exponent)
    slopes = {name: outer * slope for name, slope in a.slopes.items()}
    return Value(a.interval**exponent, cast("pint.Unit", a.dims**exponent), slopes)


def _larger(a: Value, b: Value) -> Value:
    _require_one_dimension("compared", a, b)
    if a.interval.low >= b.interval.high:
        return a
    if b.interval.low >= a.interval.high:
        return b
    slopes = {name: _slope(a, name).joined(_slope(b, name)) for name in {**a.slopes, **b.slopes}}
    ends = max(a.interval.low, b.interval.low), max(a.interval.high, b.interval.high)
    return Value(Interval(*ends), a.dims, slopes)


def _smaller(a: Value, b: Value) -> Value:
    return negated(_larger(negated(a), negated(b)))


def _remainder(a: Value, b: Value) -> Value:
    """What is left of whole times `b` in `a`: of exact figures only, since a rounded one leaves anything."""
    _require_one_dimension("divided with a remainder", a, b)
    if not (a.interval.exact and b.interval.exact):
        raise UndecidedError("a rounded figure leaves any remainder; say `exactly` where it is exact")
    divisor = b.interval.low
    if divisor == 0:
        raise DivisorZeroError(maybe=False, figures=b.slopes)
    left = a.interval.low - divisor * math.floor(a.interval.low / divisor)
    return Value(Interval.exactly(Fraction(left)), a.dims)


OPERATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "+": _sum,
    "-": _difference,
    "*": _product,
    "/": _quotient,
    "max": _larger,
    "min": _smaller,
    "remainder": _remainder,
}


@contextmanager
def _dividing_by(divisor: Value) -> Iterator[None]:
    """Says of a division by zero which figures the divisor rests on."""
    try:
        yield
    except DivisorZeroError as zero:
        raise DivisorZeroError(maybe=zero.maybe, figures=divisor.slopes) from None


def _slope(value: Value, name: str) -> Interval:
    return value.slopes.get(name, _ZERO)


def _require_one_dimension(done: str, a: Value, b: Value) -> None:
    if a.dims != b.dims:
        raise InputError(f"mixed units: {dims_text(a.dims)} and {dims_text(b.dims)} cannot be {done}")
