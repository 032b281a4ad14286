"""Intervals of means: inside the bounds that the mean has, and as often right as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.mean_interval import mean_above_zero, mean_between, mean_of, ratio_of_logs, share_of

SHARES = st.lists(st.floats(0, 1), min_size=2, max_size=30)


@given(SHARES)
def test_the_interval_of_a_share_is_within_0_and_1_and_holds_the_mean(values: list[float]) -> None:
    found = mean_between(values)
    if found.ci is not None:
        assert 0 <= found.ci[0] <= found.value <= found.ci[1] <= 1


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=2, max_size=40))
def test_the_interval_of_a_difference_of_shares_is_within_minus_1_and_1(values: list[float]) -> None:
    found = mean_between(values, low=-1.0)
    if found.ci is not None:
        assert -1 <= found.ci[0] <= found.value <= found.ci[1] <= 1


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_the_interval_of_what_is_never_negative_is_not_either(values: list[float]) -> None:
    found = mean_above_zero(values)
    if found.ci is not None:
        assert 0 <= found.ci[0] <= found.value <= found.ci[1]


def test_a_share_that_students_interval_would_carry_beyond_1_is_not() -> None:
    rows = [1.0] * 7 + [0.8]
    plain = mean_of(rows).ci
    assert plain is not None
    assert plain[1] > 1
    found = mean_between(rows).ci
    assert found is not None
    assert found[1] < 1


def test_away_from_the_bounds_it_is_students() -> None:
    rows = [0.5 + 0.001 * n for n in range(-10, 11)]
    assert mean_between(rows).ci == pytest.approx(mean_of(rows).ci, rel=1e-4)


def test_all_right_is_no_proof_that_none_is_wrong() -> None:
    """Wilson (1927), of 100 of 100: 100 / (100 + z²)."""
    found = mean_between([1.0] * 100)
    assert found.ci == pytest.approx((100 / (100 + 1.959964**2), 1.0))
    assert found.how == "Wilson's"


@given(st.integers(1, 100_000), st.data())
def test_a_share_of_any_number_is_within_its_interval(n: int, data: st.DataObject) -> None:
    for count in (0, n, data.draw(st.integers(0, n))):
        found = share_of(count, n)
        assert found.ci is not None
        assert 0 <= found.ci[0] <= found.value <= found.ci[1] <= 1


def test_rows_all_alike_show_no_spread() -> None:
    assert mean_between([0.9] * 8).ci is None
    assert mean_between([0.0] * 8, low=-1.0).ci is None
    assert mean_above_zero([0.5] * 8).ci is None


@pytest.mark.parametrize("values", [[], [0.5], [0.5, math.nan], [0.5, math.inf]])
def test_too_few_values_or_one_that_is_no_number_have_no_interval(values: list[float]) -> None:
    assert mean_of(values).ci is None
    assert mean_between(values).ci is None


def test_the_interval_of_shares_near_1_covers_their_mean_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    hits, times = 0, 400
    for _ in range(times):
        ci = mean_between(draw.beta(18, 1, size=16).tolist()).ci
        assert ci is not None
        hits += ci[0] <= 18 / 19 <= ci[1]
    assert 0.9 <= hits / times <= 0.99


def test_a_ratio_is_e_to_the_mean_of_logarithms() -> None:
    found = ratio_of_logs([0.0, math.log(4)])
    assert found.value == pytest.approx(2.0)
    assert found.ci is not None
    assert found.ci[0] * found.ci[1] == pytest.approx(4.0)
    assert ratio_of_logs([800.0, 801.0]).value == math.inf
