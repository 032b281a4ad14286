"""The red line: a bill is over it, within it, or has no figure to hold it to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import make_header, make_record

from trueup.analysis.bill import make_bill
from trueup.analysis.budget import PER_MILLION, budget_given, budget_of, judged
from trueup.schema import InputError, Measurement, unavailable

IN_RECIPE = {"recipe": {"budget": {"usd_per_million_tokens": 0.32}}}
NO_FIGURE = unavailable(PER_MILLION, "the run trained no useful token")


def figure(value: float) -> Measurement:
    return Measurement(value=value, unit=PER_MILLION, kind="derived")


@given(st.floats(1e-6, 1e6), st.floats(0, 1e6))
def test_a_bill_is_over_by_what_it_has_above_the_limit(limit: float, value: float) -> None:
    found = judged(budget_given(limit, "a test"), figure(value), total_usd=1.0)
    assert found.over_by.value == pytest.approx(value - limit)
    assert found.share.value == pytest.approx((value - limit) / limit)
    assert found.verdict == ("over" if value > limit else "within")


def test_a_bill_on_the_line_is_within_it() -> None:
    assert judged(budget_given(0.32, "a test"), figure(0.32), total_usd=1.0).verdict == "within"


def test_money_spent_on_no_useful_token_is_over_any_budget() -> None:
    found = judged(budget_given(1e9, "a test"), NO_FIGURE, total_usd=0.01)
    assert found.verdict == "over"
    assert found.over_by.reason == "the run trained no useful token"


def test_where_nothing_was_spent_and_nothing_trained_there_is_no_verdict() -> None:
    assert judged(budget_given(0.32, "a test"), NO_FIGURE, total_usd=0.0).verdict == "not known"


def test_the_limit_names_where_it_is_from() -> None:
    found = budget_of(make_header(**IN_RECIPE))
    assert found is not None
    assert found.usd_per_million_tokens == 0.32
    assert "budget.usd_per_million_tokens of the recipe" in found.source


@pytest.mark.parametrize("recipe", [{}, {"budget": None}, {"budget": {"usd_per_million_tokens": None}}])
def test_a_recipe_without_a_red_line_has_none(recipe: dict[str, object]) -> None:
    assert budget_of(make_header(recipe=recipe)) is None


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), 5e-324, 1e300])
def test_a_budget_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(InputError, match="expected a number from"):
        budget_given(limit, "a test")


def test_a_bill_is_held_to_the_recipes_budget() -> None:
    bill = make_bill(make_record(header=IN_RECIPE))
    assert bill.budget is not None
    assert bill.budget.limit.value == 0.32
    assert bill.budget.figure == bill.usd_per_million_useful_tokens


def test_a_budget_that_is_given_takes_the_place_of_the_recipes() -> None:
    bill = make_bill(make_record(header=IN_RECIPE), budget=budget_given(7.0, "a test"))
    assert bill.budget is not None
    assert bill.budget.limit.value == 7.0


def test_a_bill_without_a_budget_has_no_verdict() -> None:
    assert make_bill(make_record()).budget is None
