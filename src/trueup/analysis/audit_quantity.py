"""A published figure, as text, to the range of values that it can stand for; and numbers to text again.

The last digit that was written is rounded: `23.3` is 23.25 to 23.35. In whole numbers of 1,000 and more,
zeros at the end do not count as written: `15,200` is 15,150 to 15,250. Fewer than 1,000 whole things (nodes,
runs, tokens, or no unit at all) are exact. `about` allows a whole last digit to either side, and never counts
zeros at the end; `exactly` allows nothing. A range is a range: `6 to 8 min`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import pint

from trueup.schema import InputError

from .audit_interval import Interval
from .audit_units import Unit, read_unit

NOT_GIVEN = "not given"
_NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(
    rf"(?:(?P<how>about|exactly)\s+|(?P<approximately>[≈~])\s*)?(?P<sign>[+\-−])?\s*(?P<currency>[$€£])?"
    rf"(?P<number>{_NUMBER})(?:\s*(?:to|–)\s*[$€£]?(?P<to>{_NUMBER})(?![\d.,]))?"
    rf"(?:\s*(?:±|\+/-)\s*(?P<margin>{_NUMBER}))?(?P<unit>.*)",
    re.DOTALL,
)
_MOST_DIGITS = 40
_LARGEST_EXPONENT = 30
_COUNTS_ARE_EXACT_BELOW = 1000
_LARGEST = 10**100  # in root units
_LONGEST = 200  # characters
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Quantity:
    """Text as published, its range in root units, and its unit, in which results are shown. `zero`: it was
    written as 0, and not as a range around it."""

    text: str
    interval: Interval
    unit: Unit
    zero: bool = False

    @property
    def dims(self) -> pint.Unit:
        return self.unit.dims

    def shown(self, value: Fraction) -> float:
        """A value in root units in this figure's own unit. InputError beyond what a float holds."""
        try:
            return float(value / self.unit.factor)
        except OverflowError:
            raise InputError(f"'{self.text}': in this unit the result is too large a number") from None


def read_quantity(text: str) -> Quantity | None:
    """The figure; None where it is `not given`. InputError where the text is no figure."""
    text = " ".join(text.split())
    if text == NOT_GIVEN:
        return None
    if not text or len(text) > _LONGEST:
        raise InputError(
            f"a figure of {len(text)} characters is none; write a number with its unit, such as 32.77 USD/h, "
            f"or '{NOT_GIVEN}'"
        )
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise InputError(
            f"'{text}' is no figure: write a number with its unit, such as 32.77 USD/h, 6 to 8 min, "
            f"about 40 GB, or '{NOT_GIVEN}'"
        )
    unit = _unit_of(found["currency"], found["unit"].strip())
    how = "about" if found["approximately"] else found["how"]
    interval = _range(found, how, unit, text)
    if found["sign"] in ("-", "−"):
        interval = -interval
    interval = interval * Interval.exactly(unit.factor)
    if max(abs(interval.low), abs(interval.high)) > _LARGEST:
        raise InputError(f"'{text}' is too large a number to be meant")
    zero = interval.contains(0) and _number(found["number"])[0] == 0 and not (found["to"] or found["margin"])
    return Quantity(text, interval, unit, zero)


def _unit_of(currency: str | None, text: str) -> Unit:
    """`$32.77/h` is 32.77 in the unit `$/h`."""
    if currency is None:
        return read_unit(text)
    joint = "" if not text or text.startswith("/") else " "
    return read_unit(f"{currency}{joint}{text}")


def _range(found: re.Match[str], how: str | None, unit: Unit, text: str) -> Interval:
    value, step = _number(found["number"], zeros_count=how != "about")
    if found["to"] is not None:
        if how is not None or found["margin"] is not None:
            raise InputError(f"'{text}': a range 'A to B' takes neither about, exactly nor ±")
        if found["sign"] is not None:
            raise InputError(f"'{text}': whose sign it is cannot be seen; write a range without signs")
        high, _ = _number(found["to"])
        if high < value:
            raise InputError(f"'{text}': the range ends below where it begins")
        return Interval(value, high)
    if found["margin"] is not None:
        margin, _ = _number(found["margin"])
        return Interval(value - margin, value + margin)
    small_count = unit.discrete and value.denominator == 1 and value < _COUNTS_ARE_EXACT_BELOW
    if how == "exactly" or (how is None and small_count and "." not in found["number"]):
        return Interval.exactly(value)
    half = step if how == "about" else step / 2
    return Interval(value - half, value + half)


def _number(text: str, *, zeros_count: bool = True) -> tuple[Fraction, Fraction]:
    """The number, and the place of its last digit that counts as written."""
    mantissa, _, exponent_text = text.lower().replace(",", "").partition("e")
    exponent = int(exponent_text or 0) if len(exponent_text) <= 4 else _LARGEST_EXPONENT + 1
    if len(mantissa) > _MOST_DIGITS or abs(exponent) > _LARGEST_EXPONENT:
        raise InputError(
            f"'{text[:60]}' is no published figure: at most {_MOST_DIGITS} digits and an exponent of "
            f"{_LARGEST_EXPONENT}"
        )
    whole, point, decimals = mantissa.partition(".")
    scale = Fraction(10) ** exponent
    value = Fraction(mantissa)
    place = Fraction(1, 10 ** len(decimals))
    if not point and value and not (zeros_count and value < _COUNTS_ARE_EXACT_BELOW):
        place = Fraction(10 ** (len(whole) - len(whole.rstrip("0"))))
    return value * scale, place * scale


def four_digits(value: float) -> str:
    """1,235; 18.4; 0.001797; 1.2e-07."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -5 or magnitude >= 15:
        return f"{value:.4g}"
    decimals = max(0, 3 - magnitude)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def scaled(value: float, unit: str) -> str:
    """480.9 TFLOP/s; 128.5 GB."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{four_digits(value / size)} {prefix}{unit}"
    return f"{four_digits(value)} {unit}"
