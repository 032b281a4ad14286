"""Published figures as text: what they can stand for, in which unit; what is no figure."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.audit_quantity import Quantity, read_quantity
from trueup.analysis.audit_units import no_dimension, read_unit
from trueup.schema import InputError


def quantity(text: str) -> Quantity:
    found = read_quantity(text)
    assert found is not None
    return found


def ends(text: str) -> tuple[float, float]:
    """In the figure's own unit."""
    found = quantity(text)
    return found.shown(found.interval.low), found.shown(found.interval.high)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("23.3 USD", 23.25, 23.35),
        ("$23.30", 23.295, 23.305),
        ("0.10 USD/kWh", 0.095, 0.105),
        ("14 min", 13.5, 14.5),
        ("470,000 records", 465_000, 475_000),
        ("15,200 tokens/s", 15_150, 15_250),
        ("3127 W", 3126.5, 3127.5),
        ("700 W", 699.5, 700.5),
        ("2.1 billion tokens", 2.05, 2.15),
        ("5e3 tokens", 4500, 5500),
        ("+88%", 87.5, 88.5),
        ("-35%", -35.5, -34.5),
        ("−35 %", -35.5, -34.5),
        ("about 40 GB", 30, 50),
        ("~22 h", 21, 23),
        ("exactly 1,200 steps", 1200, 1200),
        ("40 ± 2 GB", 38, 42),
        ("6 to 8 min", 6, 8),
        ("$6 to $8 per kWh", 6, 8),
    ],
)
def test_a_figure_stands_for_what_rounds_to_it(text: str, low: float, high: float) -> None:
    assert ends(text) == pytest.approx((low, high), rel=1e-12)


@pytest.mark.parametrize("text", ["3", "216 runs", "24 chips", "10 nodes", "512 tokens", "0"])
def test_few_whole_things_are_exact(text: str) -> None:
    assert quantity(text).interval.exact


@pytest.mark.parametrize(
    "text", ["3.0", "3.3 nodes", "1,000 nodes", "about 10 nodes", "16 records/step", "3 h"]
)
def test_other_figures_are_rounded(text: str) -> None:
    assert not quantity(text).interval.exact


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("$0.0018 per thousand tokens", "$1.8 per million tokens"),
        ("15,200 tokens/s", "15.2 ktokens/s"),
        ("1 h", "60 min"),
        ("2.46 kWh", "2460 Wh"),
        ("1 GiB", "1024 MiB"),
        ("8 bits", "1 byte"),
        ("1 cent", "0.01 USD"),
        ("38%", "0.38"),
        ("1 week", "7 days"),
        ("1 USD/(1000 tokens)", "1 USD/ktoken"),
        ("312 TFLOP/s", "0.312 PFLOP per second"),
        ("1 J", "1 W s"),
    ],
)
def test_one_figure_in_two_units_is_one_figure(text: str, same: str) -> None:
    a, b = quantity(text), quantity(same)
    assert a.interval.middle == b.interval.middle
    assert a.dims == b.dims


def test_a_division_applies_to_all_the_words_after_it() -> None:
    assert read_unit("USD per million tokens").dims == read_unit("USD/token").dims
    assert read_unit("USD per million tokens").factor == Fraction(1, 10**6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("USD", "EUR"),
        ("tokens", "records"),
        ("tokens", "requests"),
        ("records", "queries"),
        ("W", "Wh"),
        ("tokens", "tokens/s"),
        ("FLOP", "FLOP/s"),
        ("bytes", "parameters"),
        ("steps", "nodes"),
    ],
)
def test_things_that_are_not_the_same_have_dimensions_of_their_own(one: str, other: str) -> None:
    assert read_unit(one).dims != read_unit(other).dims


@pytest.mark.parametrize("text", ["nodes", "chips", "GPUs", "runs", "prompts", "users", "%", ""])
def test_what_is_merely_counted_has_no_dimension(text: str) -> None:
    assert read_unit(text).dims == no_dimension()


def test_not_given_is_no_figure_and_no_error() -> None:
    assert read_quantity("not given") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 characters"),
        ("many tokens", "is no figure"),
        ("tokens", "is no figure"),
        ("3 tokenz", "did you mean token"),
        ("3 furlongs", "unknown unit 'furlongs'"),
        ("3 tokens/", "lacks something after '/'"),
        ("3 tokens//s", "lacks something after '/'"),
        ("3 USD/(token", "lacks a ')'"),
        ("3 token)", "a ')' too many"),
        ("3 USD/0", "divides by zero"),
        ("1.2.3 s", "is no unit"),
        ("1,5 s", "is no unit"),
        ("8 to 6 min", "ends below"),
        ("about 6 to 8 min", "neither about"),
        ("-5 to 8 min", "whose sign"),
        ("1 h 20 min", "as two figures"),
        ("16 x 175 W", "as two figures"),
        ("1e999 s", "exponent"),
        ("1e99999999999 s", "exponent"),
        ("1" * 60 + " s", "digits"),
        ("1" * 300, "300 characters"),
        ("3 " + "s " * 90, "characters"),
        ("3 s; import os", "is not understood"),
        ("3 __import__('os')", "is no unit"),
        ("nan", "is no figure"),
        ("inf USD", "is no figure"),
    ],
)
def test_what_is_no_figure_is_said_to_be_none(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why.replace("(", r"\(").replace(")", r"\)")):
        read_quantity(text)


@given(
    st.decimals(min_value="0.001", max_value="99999", places=4),
    st.integers(min_value=0, max_value=3),
)
def test_a_rounded_number_contains_what_was_rounded(value: object, places: int) -> None:
    text = f"{value:.{places}f}"
    if "." not in text and float(text) < 1000:
        text += " W"  # a whole number of things would be exact
    assert quantity(text).interval.contains(Fraction(str(value)))
