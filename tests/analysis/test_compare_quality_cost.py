"""Dollars, seconds and tokens to a perplexity, from the evaluations of each run."""

from __future__ import annotations

import math
from typing import Any

import pytest
from compared_runs import make_evaluation, make_run

from trueup.analysis.comparable import ComparedRun, Group
from trueup.analysis.compare import compare
from trueup.analysis.quality_cost import Reached, reach, target_perplexity
from trueup.schema import InputError, Price

CURVE = [make_evaluation(0, 40.0, 10.0), make_evaluation(20, 20.0, 60.0), make_evaluation(40, 10.0, 110.0)]


def run(run_id: str = "00000001", curve: list[Any] = CURVE, **header: Any) -> ComparedRun:
    return make_run(run_id, evaluations=curve, **header)


def test_between_two_evaluations_the_loss_falls_evenly_with_time_and_tokens() -> None:
    found = reach(run(), math.sqrt(20.0 * 10.0))
    assert isinstance(found, Reached)
    assert (found.seconds, found.tokens) == (pytest.approx(85.0), pytest.approx(15_000))


def test_a_perplexity_that_was_evaluated_needs_no_interpolation() -> None:
    found = reach(run(), 20.0)
    assert isinstance(found, Reached)
    assert (found.seconds, found.tokens) == (pytest.approx(60.0), pytest.approx(10_000))
    assert found.method == "evaluation after step 20"


def test_dollars_are_the_whole_wall_clock_at_the_runs_price() -> None:
    found = compare([Group("a", (run("00000001"),)), Group("b", (run("00000002"),))], at_perplexity=20.0)
    one = found.groups[0].figures["usd_to_quality"]
    assert (one.value, one.unit, one.kind) == (pytest.approx(60.0 * 3.6 / 3600), "USD", "derived")


def test_dollars_at_an_estimated_price_are_estimated() -> None:
    guess = Price(usd_per_hour=3.6, source="a guess", kind="estimated")
    groups = [Group("a", (run("00000001", price=guess),)), Group("b", (run("00000002"),))]
    figures = compare(groups, at_perplexity=20.0).groups[0].figures
    assert figures["usd_to_quality"].kind == "estimated"
    assert figures["s_to_quality"].kind == "derived"


def test_a_run_that_never_got_there_has_no_cost_and_neither_has_its_group() -> None:
    stuck = run("00000002", [CURVE[0], make_evaluation(20, 30.0, 60.0)])
    found = compare(
        [Group("a", (run("00000001"), stuck)), Group("b", (run("00000003"),))], at_perplexity=15.0
    )
    one = found.groups[0].figures["usd_to_quality"]
    assert one.value is None
    assert one.reason == "run 00000002 never reached 15; its lowest is 30 (1 of 2 runs)"
    assert found.groups[1].figures["usd_to_quality"].value is not None


def test_the_default_is_the_worst_final_perplexity() -> None:
    groups = [Group("a", (run("00000001"),)), Group("b", (run("00000002", CURVE[:2]),))]
    assert target_perplexity(groups) == 20.0
    assert all(one.figures["usd_to_quality"].value is not None for one in compare(groups).groups)


def test_a_diverged_run_does_not_set_the_default() -> None:
    lost = make_evaluation(40, 10.0, 110.0).model_copy(update={"loss": math.inf, "perplexity": math.inf})
    groups = [Group("a", (run("00000001"),)), Group("b", (run("00000002", [*CURVE[:2], lost]),))]
    assert target_perplexity(groups) == 10.0


def test_what_was_so_good_from_the_start_has_no_known_cost() -> None:
    assert "at its first evaluation, step 0" in str(reach(run(), 50.0))


def test_evaluations_before_a_run_went_back_do_not_count() -> None:
    went_back = [
        CURVE[0],
        make_evaluation(20, 9.0, 60.0),
        make_evaluation(20, 20.0, 130.0),
        make_evaluation(40, 10.0, 180.0),
    ]
    found = reach(run(curve=went_back), 15.0)
    assert isinstance(found, Reached)
    assert found.seconds > 130


def test_without_a_price_there_are_seconds_and_no_dollars() -> None:
    groups = [Group("a", (run("00000001", price=None),)), Group("b", (run("00000002", price=None),))]
    figures = compare(groups).groups[0].figures
    assert figures["usd_to_quality"].reason == "the run has no price"
    assert figures["s_to_quality"].value is not None


@pytest.mark.parametrize("asked", [0.5, -1.0, math.nan, math.inf])
def test_a_perplexity_below_one_is_refused(asked: float) -> None:
    with pytest.raises(InputError, match="at least 1"):
        compare([Group("a", (run("00000001"),)), Group("b", (run("00000002"),))], at_perplexity=asked)


def test_runs_that_were_not_evaluated_say_so() -> None:
    found = compare([Group("a", (run("00000001", []),)), Group("b", (run("00000002", []),))])
    assert found.perplexity is None
    assert found.groups[0].figures["usd_to_quality"].reason == "no run was evaluated"
