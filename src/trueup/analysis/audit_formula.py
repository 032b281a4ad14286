"""What follows from a formula over published figures, with units and rounding.

Plain interval arithmetic takes two mentions of one figure for two figures: c / (c + r) would come out twice
as wide as it is. So the slope by each figure goes along with the value (forward mode): where its sign is
certain, the range ends where that figure's does; where not, the figure's range is halved, and halved again.
The range found always contains the truth, and is exact where every slope has a sign.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import pint

from trueup.schema import InputError

from .audit_expression import (
    Comparison,
    Expression,
    Name,
    Number,
    Operation,
    names_in,
    parse_comparison,
    parse_formula,
)
from .audit_interval import DivisorZeroError, Interval, TooLongError
from .audit_quantity import Quantity
from .audit_units import no_dimension
from .audit_value import OPERATIONS, UndecidedError, Value, negated, power

DEEPEST = 30  # formulas within formulas
MOST_FIGURES = 100  # behind one formula; time goes with the square
HALVINGS = 6
NARROW = Fraction(1, 50)  # of a range: what its ends may lie too far out, after which halving is no use
LARGEST = 10**250  # of a result in root units
_ZERO = Interval.exactly(0)
_ONE = Interval.exactly(1)

Box = Mapping[str, Interval]  # a range for each published figure


@dataclass(frozen=True)
class Result:
    """What follows, in root units: from the figures as they were written, and the range their rounding
    leaves."""

    nominal: Fraction
    interval: Interval
    dims: pint.Unit


class Figures:
    """Published figures by name (None: not given), and formulas that define others.

    InputError where a formula is none, names an unknown quantity or leads back to itself.
    """

    def __init__(self, published: Mapping[str, Quantity | None], formulas: Mapping[str, str]) -> None:
        self._published = dict(published)
        self._formulas = {name: parse_formula(text) for name, text in formulas.items()}
        followed: set[str] = set()
        for name in self._formulas:
            self._follow(name, (), followed)

    def value(self, formula: str) -> Result:
        """What follows. UndecidedError where something is missing or a divisor may be zero; InputError where
        the formula is none, mixes units or divides by zero."""
        return self._tight(parse_formula(formula), formula)

    def compared(self, check: str) -> tuple[Comparison, Result, Result, Result]:
        """A comparison's sign, its left and right side, and left minus right. Errors as of `value`."""
        sign, left, right = parse_comparison(check)
        difference = self._tight(Operation("-", left, right), check)
        return sign, self._tight(left, check), self._tight(right, check), difference

    def rests_on(self, formula: str | None, check: str | None) -> tuple[str, ...]:
        """The published figures that a formula or a comparison rests on, in the order of their mention."""
        if formula is not None:
            return self.published_in(parse_formula(formula))
        if check is not None:
            return self.published_in(Operation("-", *parse_comparison(check)[1:]))
        return ()

    def published_in(self, expression: Expression) -> tuple[str, ...]:
        """The published figures that it rests on, in the order of their mention."""
        found: dict[str, None] = {}
        self._collect(expression, found, set())
        if len(found) > MOST_FIGURES:
            raise InputError(
                f"a formula that rests on more than {MOST_FIGURES} figures is none of an article's"
            )
        return tuple(found)

    def _collect(self, expression: Expression, found: dict[str, None], done: set[str]) -> None:
        for name in names_in(expression):
            if name in self._formulas:
                if name not in done:
                    done.add(name)
                    self._collect(self._formulas[name], found, done)
            elif name in self._published:
                found.setdefault(name)
            else:
                raise InputError(self._unknown(name))

    def _follow(self, name: str, path: tuple[str, ...], followed: set[str]) -> None:
        if name in followed:
            return
        if name in path:
            circle = " → ".join((*path[path.index(name) :], name))
            raise InputError(f"circular definition: {circle}")
        if len(path) > DEEPEST:
            raise InputError(f"'{path[0]}' rests on more than {DEEPEST} formulas in a row; write it shorter")
        for used in dict.fromkeys(names_in(self._formulas[name])):
            if used in self._formulas:
                self._follow(used, (*path, name), followed)
            elif used not in self._published:
                raise InputError(f"figure '{name}': {self._unknown(used)}")
        followed.add(name)

    def _unknown(self, name: str) -> str:
        known = [*self._published, *self._formulas]
        close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
        there = ", ".join(sorted(known)) or "none"
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {there}"
        return f"unknown quantity '{name}'; {hint}"

    def _tight(self, expression: Expression, text: str) -> Result:
        quantities = {name: self._published[name] for name in self.published_in(expression)}
        missing = tuple(name for name, quantity in quantities.items() if quantity is None)
        if missing:
            raise UndecidedError(f"not given: {', '.join(missing)}", missing)
        dims = {name: quantity.dims for name, quantity in quantities.items() if quantity}
        box = {name: quantity.interval for name, quantity in quantities.items() if quantity}

        def in_box(inner: Box) -> Value:
            return _Walk(self._formulas, dims, inner).value(expression)

        try:
            first = in_box(box)
            interval = _narrowed(in_box, box, first, HALVINGS)
            if max(abs(interval.low), abs(interval.high)) > LARGEST:
                raise TooLongError
            written = in_box({name: Interval.exactly(one.middle) for name, one in box.items()})
            return Result(written.interval.low, interval, first.dims)
        except DivisorZeroError as divisor:
            zeros = _zeros_divided_by(in_box, box, quantities)
            if divisor.maybe and not zeros:
                raise UndecidedError(f"within the figures' rounding, '{text}' may divide by zero") from None
            raise InputError(f"'{text}': division by zero{': ' if zeros else ''}{', '.join(zeros)}") from None
        except TooLongError:
            raise InputError(f"'{text}' makes a number too long to be meant") from None
        except RecursionError:
            raise InputError(f"'{text}' is nested too deeply; define its parts as figures") from None


def _zeros_divided_by(
    in_box: Callable[[Box], Value], box: Box, quantities: Mapping[str, Quantity | None]
) -> list[str]:
    """Of a divisor that is zero as the figures are written, those of its figures that were written as 0: a
    slip of the file. One that is zero by what cancels may be anything within the figures' rounding."""
    try:
        in_box({name: Interval.exactly(one.middle) for name, one in box.items()})
    except DivisorZeroError as as_written:
        found = {name: quantities[name] for name in as_written.figures}
        return [f"{name} is '{one.text}'" for name, one in found.items() if one is not None and one.zero]
    except TooLongError:
        pass
    return []


def _narrowed(in_box: Callable[[Box], Value], box: Box, found: Value, halvings: int) -> Interval:
    """The range over the box, of which `found` is the plain one.

    Figures whose slope has no sign stay ranges, which the mean value theorem makes narrow where a figure
    cancels: f at their middles, and their slopes over the box times the way to its ends.
    """
    lowest, highest, open_figures = _pinned(box, found)
    low, high = in_box(lowest).interval.low, in_box(highest).interval.high
    if not open_figures:
        return Interval(low, high)
    middles = {name: Interval.exactly(box[name].middle) for name in open_figures}
    spread = _ZERO
    for name, middle in middles.items():
        spread += found.slopes[name] * (box[name] - middle)
    low = max(low, in_box({**lowest, **middles}).interval.low + spread.low)
    high = min(high, in_box({**highest, **middles}).interval.high + spread.high)
    if halvings == 0 or spread.width <= NARROW * (high - low):
        return Interval(low, high)
    widest = max(open_figures, key=lambda name: found.slopes[name].width * box[name].width)
    halves = []
    for half in _halves(box[widest]):
        inner = {**box, widest: half}
        halves.append(_narrowed(in_box, inner, in_box(inner), halvings - 1))
    return halves[0].joined(halves[1])


def _pinned(box: Box, found: Value) -> tuple[dict[str, Interval], dict[str, Interval], list[str]]:
    """The box with each figure at the end where the value is lowest, and highest; and those whose slope does
    not say which end that is."""
    lowest, highest, open_figures = dict(box), dict(box), []
    for name, interval in box.items():
        slope = found.slopes.get(name, _ZERO)
        low, high = Interval.exactly(interval.low), Interval.exactly(interval.high)
        if slope.low >= 0:
            lowest[name], highest[name] = low, high
        elif slope.high <= 0:
            lowest[name], highest[name] = high, low
        else:
            open_figures.append(name)
    return lowest, highest, open_figures


def _halves(interval: Interval) -> tuple[Interval, Interval]:
    return Interval(interval.low, interval.middle), Interval(interval.middle, interval.high)


class _Walk:
    """One evaluation: every figure has one range, and each formula is worked out once."""

    def __init__(self, formulas: Mapping[str, Expression], dims: Mapping[str, pint.Unit], box: Box) -> None:
        self._formulas = formulas
        self._dims = dims
        self._box = box
        self._known: dict[str, Value] = {}

    def value(self, expression: Expression) -> Value:
        match expression:
            case Number(number):
                return Value(Interval.exactly(number), no_dimension())
            case Name(name):
                return self._named(name)
            case Operation("**", left, Number(exponent)):
                return power(self.value(left), int(exponent))
            case Operation("-", Number(zero), right) if zero == 0:
                return negated(self.value(right))  # a sign, which units do not mind
            case Operation(operator, left, right):
                return OPERATIONS[operator](self.value(left), self.value(right))

    def _named(self, name: str) -> Value:
        if name not in self._known:
            if name in self._formulas:
                self._known[name] = self.value(self._formulas[name])
            else:
                self._known[name] = Value(self._box[name], self._dims[name], {name: _ONE})
        return self._known[name]
