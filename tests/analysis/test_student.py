"""Student's t is that of scipy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import nctdtr, stdtr, stdtrit

from trueup.analysis.student import below, noncentral_below, quantile

DF = st.floats(0.0, 4.3).map(lambda power: 10.0**power)
T = st.floats(-60, 60)


@given(DF, T)
def test_probabilities_are_scipys(df: float, t: float) -> None:
    assert below(df, t) == pytest.approx(float(stdtr(df, t)), abs=1e-12)


@given(DF, st.floats(-30, -0.01))
def test_small_probabilities_are_scipys_by_their_size_too(df: float, t: float) -> None:
    expected = float(stdtr(df, t))
    assert below(df, t) == pytest.approx(expected, rel=1e-11, abs=1e-280)


@given(DF, st.floats(1e-9, 1 - 1e-9))
def test_quantiles_are_scipys(df: float, p: float) -> None:
    assert quantile(df, p) == pytest.approx(float(stdtrit(df, p)), rel=1e-10, abs=1e-10)


@given(DF, st.floats(0.01, 0.99))
def test_a_quantile_is_where_the_probability_is_reached(df: float, p: float) -> None:
    assert below(df, quantile(df, p)) == pytest.approx(p, abs=1e-12)


@given(DF, st.floats(0.001, 0.5))
def test_quantiles_are_symmetric(df: float, p: float) -> None:
    assert quantile(df, p) == pytest.approx(-quantile(df, 1 - p), rel=1e-9, abs=1e-12)


@given(DF.map(lambda df: 2 * df), st.floats(-30, 30), st.floats(-20, 20))
def test_the_noncentral_t_is_scipys(df: float, noncentrality: float, t: float) -> None:
    expected = float(nctdtr(df, noncentrality, t))
    found = noncentral_below(df, noncentrality, t)
    if math.isnan(expected):  # scipy's has no answer far out
        expected = 0.0 if noncentrality > t else 1.0
    assert found == pytest.approx(expected, abs=1e-11)


@given(DF, T)
def test_without_noncentrality_it_is_students(df: float, t: float) -> None:
    assert noncentral_below(df, 0.0, t) == pytest.approx(below(df, t), abs=1e-11)


@pytest.mark.parametrize(("t", "expected"), [(0.0, 0.5), (1.0, 0.75), (-1.0, 0.25), (math.sqrt(3), 5 / 6)])
def test_with_one_degree_of_freedom_it_is_cauchys(t: float, expected: float) -> None:
    assert below(1, t) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("df", "expected"),
    [(4, 2.776), (9, 2.262), (30, 2.042)],  # of every printed table
)
def test_the_quantiles_of_intervals(df: int, expected: float) -> None:
    assert quantile(df, 0.975) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        quantile(5, p)
