"""A move pays where the two cost lines cross, and never where the new side is not cheaper."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_ind, ttest_rel

from trueup.analysis.breakeven import BreakEven, SideCost, break_even, cost_lines
from trueup.schema import InputError

COSTS = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=6)
ONE_OFF = st.floats(0.0, 1e6)


def moved(a: Sequence[float], b: Sequence[float], one_off: float, **options: Any) -> BreakEven:
    return break_even(SideCost("here", a), SideCost("there", b), one_off, **options)


def apart(a: Sequence[float], b: Sequence[float]) -> bool:
    """The two means differ by more than rounding."""
    means = sum(a) / len(a), sum(b) / len(b)
    return abs(means[0] - means[1]) > 1e-6 * max(means)


@given(COSTS, COSTS, ONE_OFF)
def test_the_number_is_where_the_cost_lines_cross(a: list[float], b: list[float], one_off: float) -> None:
    assume(apart(a, b))
    found = moved(a, b, one_off)
    crossing = cost_lines(found).crossing
    if found.runs.value is None:
        assert crossing is None
        return
    assert crossing is not None
    assert crossing[0] == pytest.approx(found.runs.value, rel=1e-6, abs=1e-9)
    assert found.cost_a.value is not None
    assert found.cost_b.value is not None
    stay, move = found.runs.value * found.cost_a.value, one_off + found.runs.value * found.cost_b.value
    assert stay == pytest.approx(move, rel=1e-6, abs=1e-9)
    assert crossing[1] == pytest.approx(stay, rel=1e-6, abs=1e-9)


@given(COSTS, COSTS, st.floats(0.01, 1e6))
def test_it_has_paid_from_the_whole_run_on_and_not_before(
    a: list[float], b: list[float], one_off: float
) -> None:
    assume(apart(a, b))
    found = moved(a, b, one_off)
    assume(found.whole_runs is not None)
    assert found.whole_runs is not None
    assert found.saving.value is not None
    assert found.whole_runs * found.saving.value >= one_off * (1 - 1e-9)
    assert (found.whole_runs - 1) * found.saving.value < one_off * (1 + 1e-9)


@given(COSTS, COSTS, st.floats(0.01, 1e6))
def test_of_there_and_back_exactly_one_pays(a: list[float], b: list[float], one_off: float) -> None:
    assume(apart(a, b))
    assert {moved(a, b, one_off).verdict, moved(b, a, one_off).verdict} == {"pays", "never pays"}


@given(COSTS, COSTS, ONE_OFF)
def test_what_is_saved_one_way_is_lost_on_the_way_back(
    a: list[float], b: list[float], one_off: float
) -> None:
    there, back = moved(a, b, one_off).saving, moved(b, a, one_off).saving
    assert there.value == -(back.value or 0.0)
    assert (there.ci is None) == (back.ci is None)
    if there.ci is not None and back.ci is not None:
        assert there.ci == pytest.approx((-back.ci[1], -back.ci[0]), rel=1e-6, abs=1e-9)


@given(COSTS, COSTS, ONE_OFF, st.sampled_from([2.0, 0.5, 1024.0]))
def test_another_unit_of_money_changes_no_number_of_runs(
    a: list[float], b: list[float], one_off: float, times: float
) -> None:
    one = moved(a, b, one_off)
    other = moved([times * cost for cost in a], [times * cost for cost in b], times * one_off)
    assert (one.runs.value is None) == (other.runs.value is None)
    if one.runs.value is not None:
        assert other.runs.value == pytest.approx(one.runs.value)


@given(COSTS, COSTS, ONE_OFF)
def test_twice_the_one_off_takes_twice_the_runs(a: list[float], b: list[float], one_off: float) -> None:
    one, two = moved(a, b, one_off), moved(a, b, 2 * one_off)
    if one.runs.value is not None:
        assert two.runs.value == pytest.approx(2 * one.runs.value)


def test_a_move_to_what_is_dearer_never_pays_and_says_why() -> None:
    found = moved([4.0], [5.0], 100.0)
    assert found.verdict == "never pays"
    assert found.whole_runs is None
    assert found.runs.reason == "there is not cheaper: 5 USD a run, against 4 USD a run at here"


def test_a_move_between_equals_never_pays() -> None:
    assert moved([4.0], [4.0], 100.0).verdict == "never pays"


def test_a_move_for_nothing_to_what_is_cheaper_pays_at_once() -> None:
    found = moved([5.0], [4.0], 0.0)
    assert (found.runs.value, found.whole_runs) == (0.0, 0)


def test_the_one_off_over_the_saving_of_each_run() -> None:
    found = moved([10.0, 10.4, 9.6], [8.0, 8.2, 7.8], 50.0)
    assert found.runs.value == pytest.approx(25.0)
    assert found.one_off.value == 50.0
    assert "50 USD / 2 USD/run" in found.runs.method


@pytest.mark.parametrize(("a", "b"), [([5.0, 5.1], [4.0, 4.1, 4.2]), ([5.0], [4.0])])
def test_fewer_runs_than_needed_give_no_interval_and_say_so(a: list[float], b: list[float]) -> None:
    found = moved(a, b, 100.0)
    assert found.verdict == "pays"
    assert found.certainty == "no interval"
    assert found.runs.ci is None
    assert any("an interval needs 3 of each" in note for note in found.notes)


def test_the_interval_is_the_one_of_the_saving_turned_over() -> None:
    a, b = [10.0, 10.4, 9.6, 10.1], [8.0, 8.2, 7.8]
    found = moved(a, b, 50.0)
    expected = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.saving.ci == pytest.approx((expected.low, expected.high))
    assert found.runs.ci == pytest.approx((50.0 / expected.high, 50.0 / expected.low))
    assert found.certainty == "sure"
    assert (found.saving.ci_method or "").startswith("between_runs: Welch")


def test_runs_that_took_turns_are_compared_in_pairs() -> None:
    """The host's drift, common to both of a pair, does not widen the interval."""
    a, b = [10.0, 12.0, 14.0, 16.0], [8.1, 9.9, 12.0, 14.1]
    paired, apart_from_each_other = moved(a, b, 50.0, paired=True), moved(a, b, 50.0)
    expected = ttest_rel(a, b).confidence_interval(0.95)
    assert paired.saving.ci == pytest.approx((expected.low, expected.high))
    assert paired.certainty == "sure"
    assert apart_from_each_other.certainty == "not sure"


def test_where_the_saving_may_be_none_there_is_no_upper_end() -> None:
    found = moved([10.0, 14.0, 6.5], [9.0, 12.0, 6.0], 50.0)
    assert found.certainty == "not sure"
    assert found.runs.value is not None
    assert found.runs.ci is None
    assert found.at_least.value is not None
    assert found.at_least.value < found.runs.value
    assert any("holds zero" in note for note in found.notes)


def test_costs_without_a_spread_make_no_interval() -> None:
    found = moved([5.0] * 3, [4.0] * 3, 10.0)
    assert found.runs.value == 10.0
    assert found.runs.ci is None
    assert any("no spread" in note for note in found.notes)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Log-normal costs of 5 runs a side, means 10 and 8."""
    draw, holds, n = random.Random(0), 0, 600
    for _ in range(n):
        a, b = ([mean * draw.lognormvariate(-0.02, 0.2) for _ in range(5)] for mean in (10.0, 8.0))
        ci = moved(a, b, 50.0).saving.ci
        assert ci is not None
        holds += ci[0] <= 2.0 <= ci[1]
    assert 0.92 <= holds / n <= 0.98


def test_currencies_are_not_mixed() -> None:
    with pytest.raises(InputError, match="here is billed in USD and there in EUR"):
        break_even(SideCost("here", [5.0]), SideCost("there", [4.0], currency="EUR"), 1.0)


@pytest.mark.parametrize("one_off", [-1.0, float("nan"), float("inf"), 1.7e308])
def test_a_one_off_is_an_amount(one_off: float) -> None:
    with pytest.raises(InputError, match="one-off cost"):
        moved([5.0], [4.0], one_off)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf"), 1.7e308])
def test_a_run_costs_an_amount(cost: float) -> None:
    with pytest.raises(InputError, match=r"a run of there cost .*: expected a number from"):
        moved([5.0], [cost], 1.0)


def test_a_side_without_a_run_is_refused() -> None:
    with pytest.raises(InputError, match="there has no full run"):
        moved([5.0], [], 1.0)
