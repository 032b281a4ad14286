"""Ratios with intervals and verdicts: against scipy.stats, against worked values, and as properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from trueup.analysis import verdicts
from trueup.analysis.verdicts import (
    MARGIN,
    Estimate,
    holm,
    interval,
    judge,
    p_different,
    p_same,
    paired,
    welch,
)

values = st.lists(st.floats(0.5, 2.0), min_size=3, max_size=8)
scales = st.floats(1e-6, 1e6)
A = [0.101, 0.097, 0.104, 0.099, 0.100]
B = [0.088, 0.085, 0.093, 0.086, 0.089]


def test_a_pairs_interval_is_that_of_scipys_paired_t() -> None:
    found = stats.ttest_rel(np.log(B), np.log(A)).confidence_interval(0.95)
    assert interval(paired(A, B)) == pytest.approx((math.exp(found.low), math.exp(found.high)))
    assert p_different(paired(A, B)) == pytest.approx(stats.ttest_rel(np.log(A), np.log(B)).pvalue)


def test_groups_of_unequal_size_have_the_interval_of_scipys_welch() -> None:
    second = [*B, 0.12, 0.07]
    tested = stats.ttest_ind(np.log(second), np.log(A), equal_var=False)
    found = tested.confidence_interval(0.95)
    assert interval(welch(A, second)) == pytest.approx((math.exp(found.low), math.exp(found.high)))
    assert p_different(welch(A, second)) == pytest.approx(tested.pvalue)


@pytest.mark.parametrize("shift", [0.0, 0.01, -0.01, 0.03])
def test_sameness_is_the_larger_of_two_one_sided_tests(shift: float) -> None:
    near = [value * math.exp(shift) * (1 + 0.001 * k) for k, value in enumerate(A)]
    ratios = np.log(near) - np.log(A)
    margin = math.log(MARGIN)
    expected = max(
        stats.ttest_1samp(ratios, -margin, alternative="greater").pvalue,
        stats.ttest_1samp(ratios, margin, alternative="less").pvalue,
    )
    assert p_same(paired(A, near)) == pytest.approx(expected, abs=1e-12)


def test_holm_gives_the_worked_values_of_rs_p_adjust() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(values, values)
def test_swapping_the_sides_turns_the_ratio_over_and_the_verdict_with_it(
    a: list[float], b: list[float]
) -> None:
    there, back = welch(a, b), welch(b, a)
    assert back.log_ratio == pytest.approx(-there.log_ratio, abs=1e-12)
    low, high = interval(there)
    assert interval(back) == pytest.approx((1 / high, 1 / low))
    turned = {"lower": "higher", "higher": "lower"}
    (verdict,), (other) = judge([there]), judge([back])
    assert other == [turned.get(verdict, verdict)]


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)), min_size=3, max_size=8))
def test_swapping_the_sides_of_pairs_does_so_too(pairs: list[tuple[float, float]]) -> None:
    a, b = [one for one, _ in pairs], [other for _, other in pairs]
    low, high = interval(paired(a, b))
    assert interval(paired(b, a)) == pytest.approx((1 / high, 1 / low))


@given(values, values, scales)
def test_the_unit_of_the_figures_does_not_matter(a: list[float], b: list[float], scale: float) -> None:
    assume(max(a) / min(a) > 1.001 or max(b) / min(b) > 1.001)
    scaled = welch([scale * one for one in a], [scale * one for one in b])
    assert interval(scaled) == pytest.approx(interval(welch(a, b)), rel=1e-6)


@given(values, values, scales)
def test_making_one_side_dearer_multiplies_the_ratio(a: list[float], b: list[float], scale: float) -> None:
    dearer = welch(a, [scale * one for one in b])
    assert dearer.log_ratio == pytest.approx(welch(a, b).log_ratio + math.log(scale), abs=1e-9)


def test_fewer_than_three_runs_on_a_side_have_no_verdict() -> None:
    assert judge([welch(A[:2], [10 * one for one in B])]) == ["none"]
    assert judge([paired(A[:2], B[:2])]) == ["none"]
    assert judge([paired(A[:3], B[:3])]) == ["lower"]


def test_a_small_but_certain_difference_within_the_margin_is_the_same() -> None:
    nearly = [one * 1.005 * (1 + 1e-5 * k) for k, one in enumerate(A)]
    assert p_different(paired(A, nearly)) < 0.05
    assert judge([paired(A, nearly)]) == ["same"]


def test_equal_runs_are_the_same_and_alike_but_apart_are_not() -> None:
    assert judge([welch([2.0] * 3, [2.0] * 3)]) == ["same"]
    assert judge([welch([2.0] * 3, [3.0] * 3)]) == ["higher"]
    assert interval(welch([2.0] * 3, [3.0] * 3)) == pytest.approx((1.5, 1.5))


def test_what_one_comparison_shows_among_many_may_be_chance() -> None:
    rng = np.random.default_rng(3)
    doubtful = welch(A, [one * 1.045 for one in A])
    assert judge([doubtful]) == ["higher"]
    noise = [welch(rng.lognormal(0, 0.1, 5).tolist(), rng.lognormal(0, 0.1, 5).tolist()) for _ in range(9)]
    assert judge([doubtful, *noise])[0] == "undecided"


@pytest.mark.parametrize(("ratio", "sd"), [(1.05, 0.04), (1.0, 0.03), (1.2, 0.1)])
def test_the_runs_that_are_said_to_be_needed_do_decide(ratio: float, sd: float) -> None:
    """In four of five simulated comparisons, as promised, or a few more: runs come whole."""
    spread = sd * math.sqrt(2)
    seen = Estimate(math.log(ratio), spread / 2, 6.0, "welch", (4, 4), spread, 2.0)
    n = verdicts.runs_needed(seen)
    assert n is not None
    rng = np.random.default_rng(11)
    decided = 0
    for _ in range(400):
        a, b = rng.lognormal(0, sd, n), ratio * rng.lognormal(0, sd, n)
        decided += judge([welch(a.tolist(), b.tolist())]) != ["undecided"]
    assert 0.74 <= decided / 400 <= 0.93


def test_more_runs_are_needed_for_a_wider_spread() -> None:
    narrow, wide = (welch([1.0, 1 + s, 1 - s], [1.1, 1.1 + s, 1.1 - s]) for s in (0.1, 0.3))
    few, many = verdicts.runs_needed(narrow), verdicts.runs_needed(wide)
    assert few is not None
    assert many is not None
    assert few < many


def test_a_group_of_one_borrows_the_others_spread() -> None:
    assert welch([1.0], [1.1, 1.2, 1.3]).spread == pytest.approx(
        math.sqrt(2) * np.log([1.1, 1.2, 1.3]).std(ddof=1)
    )
    with pytest.raises(ValueError, match="no spread"):
        welch([1.0], [2.0])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_only_positive_figures_have_a_ratio(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        paired([1.0, bad], [1.0, 1.0])


def test_the_prediction_interval_is_that_of_one_more_run() -> None:
    logs = np.log(A)
    reach = stats.t.ppf(0.975, 4) * logs.std(ddof=1) * math.sqrt(1 + 1 / 5)
    expected = (math.exp(logs.mean() - reach), math.exp(logs.mean() + reach))
    assert verdicts.prediction_interval(A) == pytest.approx(expected)
    low, high = verdicts.prediction_interval([0.0, 1.0, 2.0])
    assert low < 0 < 2 < high


# --- coverage ---------------------------------------------------------------------------------------------

SIMULATED = 2000


def covered(n: int, *, pairs: bool, seed: int, simulated: int = SIMULATED) -> float:
    """Share of 95% intervals that hold the true ratio. Runs are log-normal. Pairs share a host whose speed
    wanders from pair to pair; of groups each run meets its host at a moment of its own."""
    rng, truth = np.random.default_rng(seed), 0.85
    hits = 0
    for _ in range(simulated):
        noise = rng.normal(0, 0.02, (2, n))
        drift = np.cumsum(rng.normal(0, 0.03, n)) if pairs else rng.normal(0, 0.03, (2, n))
        a, b = np.exp(noise + drift)
        estimate = (paired if pairs else welch)(a.tolist(), (truth * b).tolist())
        low, high = interval(estimate)
        hits += low <= truth <= high
    return hits / simulated


@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("pairs", [True, False], ids=["paired", "unpaired"])
def test_the_intervals_hold_the_truth_as_often_as_they_say(n: int, pairs: bool) -> None:
    assert 0.93 <= covered(n, pairs=pairs, seed=n) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("pairs", [True, False], ids=["paired", "unpaired"])
def test_they_do_for_any_seed(n: int, pairs: bool, seed: int) -> None:
    assert 0.93 <= covered(n, pairs=pairs, seed=1000 + seed) <= 0.97


def test_one_group_after_the_other_on_a_wandering_host_is_not_covered() -> None:
    """Why a comparison warns of groups that did not take turns."""
    rng, hits = np.random.default_rng(5), 0
    for _ in range(500):
        both = np.exp(rng.normal(0, 0.02, 10) + np.cumsum(rng.normal(0, 0.03, 10)))
        low, high = interval(welch(both[:5].tolist(), both[5:].tolist()))
        hits += low <= 1 <= high
    assert hits / 500 < 0.9
