"""Numbers read as they should, and text from data cannot steer a terminal."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.report import wording


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.0000421, "42.1 µs"), (0.34, "340 ms"), (0.9999, "1 s"), (18.44, "18.4 s"),
        (59.99, "1 min"),
        (192, "3 min 12 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min"), (200_000, "2 d 8 h"), (-3, "−3 s"),
    ],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@given(st.floats(0.5, 2.0), st.floats(1e-9, 0.5), st.floats(1e-9, 0.5))
def test_a_ratio_is_shown_within_its_interval(value: float, below: float, above: float) -> None:
    ci = (value - below, value + above)
    assert ci[0] <= float(wording.quantity_within(value, ci, "1")) <= ci[1]


@pytest.mark.parametrize(
    ("ci", "unit", "name", "text"),
    [
        ((145.1, 151.0), "tokens/s", "", "145.1 to 151 tokens/s"),
        ((109.1, 109.4), "s", "", "109.1 to 109.4 s"),
        ((109.1001, 109.1004), "s", "", "109.1001 to 109.1004 s"),
        ((0.70001, 0.70002), "1", "mfu_useful", "70.001 to 70.002 %"),
        ((17.22151, 17.22154), "1", "eval_perplexity_best", "17.22151 to 17.22154"),
        ((2.0, 2.0), "s", "", "2 to 2 s"),
    ],
)
def test_the_ends_of_an_interval_are_told_apart(
    ci: tuple[float, float], unit: str, name: str, text: str
) -> None:
    assert wording.interval(ci, unit, name) == text


@pytest.mark.parametrize(
    ("value", "unit", "name", "text"),
    [
        (1.93e9, "bytes", "peak_host_bytes", "1.8 GiB"),
        (1.58e11, "FLOP/s", "", "158 GFLOP/s"),
        (2.25e10, "bytes/s", "", "22.5 GB/s"),
        (0.71, "1", "mfu_useful", "71.0 %"),
        (17.2215, "1", "eval_perplexity_best", "17.22"),
        (148.24, "tokens/s", "useful_tokens_per_s", "148.2 tokens/s"),
        (19756, "tokens", "useful_tokens", "19,756 tokens"),
        (134_515_008, "parameters", "parameters", "135 M parameters"),
        (0, "count", "compile_count", "0"),
        (0.2138, "USD/1e6 tokens", "", "$0.2138 per 1e6 tokens"),
        (41.5, "°C", "temperature_max_c", "41.5 °C"),
    ],
)
def test_quantity(value: float, unit: str, name: str, text: str) -> None:
    assert wording.quantity(value, unit, name) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0.004223, "$0.004223"), (1250, "$1,250.00"), (0, "$0.00"), (0.2138, "$0.2138"), (-2, "−$2.000")],
)
def test_dollars(usd: float, text: str) -> None:
    assert wording.dollars(usd) == text


def test_a_small_share_is_not_shown_as_nothing() -> None:
    assert wording.share(0.0001) == "<0.1 %"
    assert wording.share(0) == "0.0 %"


@given(st.floats(min_value=-1e12, max_value=1e12, allow_nan=False))
def test_a_shown_number_is_the_number_to_four_digits(value: float) -> None:
    shown = float(wording.number(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=6e-4, abs_tol=1e-300)


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_dollars_show_four_digits(usd: float) -> None:
    assert math.isclose(float(wording.dollars(usd)[1:].replace(",", "")), usd, rel_tol=6e-4, abs_tol=5e-13)


@given(st.text())
def test_cleaned_text_holds_nothing_that_steers(text: str) -> None:
    cleaned = wording.clean(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in cleaned)
    assert not set(cleaned) & set("\u202e\u2066\u200f")


def test_flat_keeps_every_setting() -> None:
    tree = {"a": {"b": 1, "c": None}, "d": [1, 2.5], "e": [{"f": True}], "g": []}
    assert list(wording.flat(tree)) == [
        ("a.b", "1"),
        ("a.c", "none"),
        ("d", "1, 2.5"),
        ("e.0.f", "yes"),
        ("g", "none"),
    ]
