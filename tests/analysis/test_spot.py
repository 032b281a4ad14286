"""Spot: the price series over a run, and what interruptions are expected to add."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from trueup.analysis.price_models import cost_of
from trueup.analysis.spot import (
    daly_interval_s,
    disturbance,
    interruption_rate,
    series_mean,
    young_interval_s,
)
from trueup.schema import InputError, Measurement, SpotPoint, SpotTerms, unavailable

START = datetime(2026, 11, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


def series(*hours_and_amounts: tuple[float, float]) -> tuple[SpotPoint, ...]:
    return tuple(SpotPoint(at=START + hours * HOUR, amount=amount) for hours, amount in hours_and_amounts)


def spot(points: tuple[SpotPoint, ...] | None = None, **changes: object) -> SpotTerms:
    fields: dict[str, object] = {"currency": "USD", "series": points or series((0, 2.0)), "source": "history"}
    return SpotTerms.model_validate(fields | changes)


def rate(value: float, **changes: object) -> Measurement:
    fields: dict[str, object] = {"value": value, "unit": "1/h", "kind": "measured"}
    return Measurement.model_validate(fields | changes)


@st.composite
def any_series(draw: st.DrawFn) -> tuple[SpotPoint, ...]:
    gaps = draw(st.lists(st.floats(0.01, 10), min_size=0, max_size=6))
    amounts = draw(st.lists(st.floats(0.1, 100), min_size=len(gaps) + 1, max_size=len(gaps) + 1))
    return series(*((math.fsum(gaps[:n]), amount) for n, amount in enumerate(amounts)))


def test_a_run_pays_what_the_hours_it_lay_in_cost() -> None:
    points = series((0, 1.0), (1, 4.0), (3, 2.0))
    cost = cost_of(spot(points), 3 * 3600, started=START + 0.5 * HOUR)
    assert cost.total.value == pytest.approx(0.5 * 1 + 2 * 4 + 0.5 * 2)


@given(points=any_series(), after_h=st.floats(0, 20), wall_h=st.floats(0.01, 50))
def test_without_interruptions_it_costs_its_price_series(
    points: tuple[SpotPoint, ...], after_h: float, wall_h: float
) -> None:
    """Against a sum over small steps; with a rate of zero nothing changes."""
    started = START + after_h * HOUR
    steps = 500
    at = [started + (n + 0.5) / steps * wall_h * HOUR for n in range(steps)]
    in_force = [max((p for p in points if p.at <= one), key=lambda p: p.at).amount for one in at]
    by_steps = math.fsum(in_force) / steps * wall_h
    largest_change = max(p.amount for p in points)
    for terms in (spot(points), spot(points, interruptions_per_hour=rate(0.0), restart_s=60)):
        cost = cost_of(terms, wall_h * 3600, started=started)
        assert cost.total.value == pytest.approx(
            by_steps, abs=len(points) * largest_change * wall_h / steps, rel=1e-9
        )
        assert cost.total.kind == "derived"


@given(points=any_series(), split=st.floats(0.01, 0.99), wall_h=st.floats(0.1, 50))
def test_two_halves_of_a_run_cost_what_the_whole_does(
    points: tuple[SpotPoint, ...], split: float, wall_h: float
) -> None:
    first_s, second_s = split * wall_h * 3600, (1 - split) * wall_h * 3600
    parts = (
        cost_of(spot(points), first_s, started=START).total.value,
        cost_of(spot(points), second_s, started=START + timedelta(seconds=first_s)).total.value,
    )
    whole = cost_of(spot(points), wall_h * 3600, started=START).total.value
    assert math.fsum(part or 0 for part in parts) == pytest.approx(whole, rel=1e-6)


def test_a_run_before_the_series_has_no_price() -> None:
    cost = cost_of(spot(), 3600, started=START - HOUR)
    assert cost.total.value is None
    assert "begin at 2026-11-02" in (cost.total.reason or "")
    assert cost.total.unit == "USD"
    assert cost.per_hour.value is None


def test_a_run_at_no_known_time_takes_the_mean_of_the_series() -> None:
    cost = cost_of(spot(series((0, 1.0), (3, 5.0), (4, 9.0))), 3600)
    assert cost.total.value == pytest.approx((3 * 1 + 1 * 5) / 4)
    assert "is not known" in cost.notes[0]
    assert "is not known" not in cost_of(spot(), 3600).notes[0]


def test_an_unknown_rate_is_not_taken_for_zero() -> None:
    for unknown in (None, unavailable("1/h", "nobody counted")):
        cost = cost_of(spot(interruptions_per_hour=unknown), 3600, started=START)
        assert cost.total.value == 2.0
        assert any("interruptions are not counted" in note for note in cost.notes)
        assert "interruptions" not in cost.parts


def test_interruptions_add_lost_work_and_restarts() -> None:
    terms = spot(interruptions_per_hour=rate(0.1), checkpoint_interval_s=600, restart_s=120)
    cost = cost_of(terms, 36_000, started=START)
    parts = {name: one.value or 0.0 for name, one in cost.parts.items() if one.unit in ("s", "1")}
    # First order: one interruption in ten hours, half an interval lost and one restart each.
    assert parts["interruptions"] == pytest.approx(1.0, rel=0.02)
    assert parts["lost_work_s"] == pytest.approx(300, rel=0.02)
    assert parts["restart_s"] == pytest.approx(120, rel=0.02)
    extra_s = parts["lost_work_s"] + parts["restart_s"]
    assert cost.total.value == pytest.approx(2.0 * (36_000 + extra_s) / 3600)
    assert cost.total.kind == "estimated"


def test_the_interval_of_the_rate_is_that_of_the_cost() -> None:
    known = rate(0.1, ci=(0.05, 0.2))
    cost = cost_of(spot(interruptions_per_hour=known, restart_s=60, checkpoint_interval_s=600), 36_000)
    ends = [
        cost_of(spot(interruptions_per_hour=rate(end), restart_s=60, checkpoint_interval_s=600), 36_000)
        for end in (0.05, 0.2)
    ]
    assert cost.total.ci == pytest.approx(tuple(end.total.value for end in ends))
    assert cost.per_hour.ci == pytest.approx(tuple(end.per_hour.value for end in ends))


def test_what_is_not_given_is_said() -> None:
    notes = " ".join(cost_of(spot(interruptions_per_hour=rate(0.1)), 3600, started=START).notes)
    assert "nothing is saved" in notes
    assert "a lower bound" in notes


def test_a_run_that_cannot_be_expected_to_end_has_no_cost() -> None:
    cost = cost_of(spot(interruptions_per_hour=rate(5.0), restart_s=0), 1e7, started=START)
    assert cost.total.value is None
    assert "save more often" in (cost.total.reason or "")


@given(
    wall_s=st.floats(100, 1e5),
    per_h=st.floats(0.01, 2),
    interval_s=st.floats(30, 2000),
    restart_s=st.floats(0, 600),
)
def test_more_interruptions_cost_more(
    wall_s: float, per_h: float, interval_s: float, restart_s: float
) -> None:
    few = disturbance(wall_s, per_h / 3600, interval_s, restart_s)
    many = disturbance(wall_s, 2 * per_h / 3600, interval_s, restart_s)
    assert few is not None
    assert many is not None
    assert 0 < few.extra_s < many.extra_s
    assert few.interruptions == pytest.approx(per_h / 3600 * (wall_s + few.extra_s))  # of a Poisson process


def test_the_expected_time_is_that_of_simulated_interruptions() -> None:
    wall_s, per_s, interval_s, restart_s = 10_000.0, 1 / 3000, 800.0, 200.0
    random_numbers = random.Random(0)
    runs = [_simulated(random_numbers, wall_s, per_s, interval_s, restart_s) for _ in range(4000)]
    expected = disturbance(wall_s, per_s, interval_s, restart_s)
    assert expected is not None
    mean = math.fsum(runs) / len(runs)
    spread = math.sqrt(math.fsum((run - mean) ** 2 for run in runs) / len(runs) ** 2)
    assert abs(mean - (wall_s + expected.extra_s)) < 4 * spread


def _simulated(
    random_numbers: random.Random, wall_s: float, per_s: float, interval_s: float, restart_s: float
) -> float:
    """Seconds until a run has done its work, saving after every interval."""
    time_s, done_s = 0.0, 0.0
    while done_s < wall_s:
        stretch = min(interval_s, wall_s - done_s)
        until = random_numbers.expovariate(per_s)
        if until >= stretch:
            time_s, done_s = time_s + stretch, done_s + stretch
            continue
        time_s += until
        while (until := random_numbers.expovariate(per_s)) < restart_s:
            time_s += until
        time_s += restart_s
    return time_s


@given(save_s=st.floats(1, 300), between_s=st.floats(1000, 1e6))
def test_dalys_interval_is_the_best_there_is(save_s: float, between_s: float) -> None:
    """Against a search over intervals: no other is better by a hundred-thousandth."""
    assume(save_s < between_s / 10)

    def time_over_work(work_s: float) -> float:
        return between_s * math.expm1((work_s + save_s) / between_s) / work_s

    tried = takewhile(lambda work_s: work_s < 10 * between_s, (save_s * 1.02**n for n in count()))
    best = min(map(time_over_work, tried))
    assert time_over_work(daly_interval_s(save_s, between_s)) <= best * 1.00001
    assert daly_interval_s(save_s, between_s) == pytest.approx(
        young_interval_s(save_s, between_s), rel=0.5 * math.sqrt(2 * save_s / between_s) + 0.01
    )


def test_a_save_as_long_as_the_time_between_failures() -> None:
    assert daly_interval_s(200, 100) == 100


def test_the_suggested_interval_holds_the_save() -> None:
    parts = cost_of(spot(interruptions_per_hour=rate(0.5), save_s=30, restart_s=60), 3600).parts
    assert parts["checkpoint_interval_young_s"].value == pytest.approx(young_interval_s(30, 7200) + 30)
    assert parts["checkpoint_interval_daly_s"].value == pytest.approx(daly_interval_s(30, 7200) + 30)
    for terms in (spot(interruptions_per_hour=rate(0.5)), spot(save_s=30), spot()):
        assert cost_of(terms, 3600).parts["checkpoint_interval_daly_s"].kind == "unavailable"


def test_a_measured_rate_has_an_exact_interval() -> None:
    seen = interruption_rate(3, 100)
    assert (seen.value, seen.unit, seen.kind, seen.n) == (0.03, "1/h", "measured", 3)
    assert seen.ci == pytest.approx((0.00619, 0.0877), rel=1e-2)
    none = interruption_rate(0, 100)
    assert none.ci == pytest.approx((0.0, 0.0369), rel=1e-2)
    for number, hours in [(-1, 1.0), (1, 0.0), (1, float("nan"))]:
        with pytest.raises(InputError):
            interruption_rate(number, hours)


def test_a_series_is_weighted_by_time() -> None:
    points = series((0, 1.0), (1, 3.0))
    assert series_mean(points, START, 0) == 1.0
    assert series_mean(points, START + HOUR, 0) == 3.0
    assert series_mean(points, START, 4 * 3600) == pytest.approx((1 + 3 * 3) / 4)
    assert series_mean(points, START - HOUR, 60) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"series": series((0, 1.0), (0, 2.0))},
        {"series": series((1, 1.0), (0, 2.0))},
        {"series": ()},
        {"interruptions_per_hour": Measurement(value=1, unit="1/s", kind="measured")},
        {"interruptions_per_hour": Measurement(value=-1, unit="1/h", kind="measured")},
        {"checkpoint_interval_s": 0},
        {"restart_s": -1},
    ],
    ids=["twice at once", "backwards", "empty", "unit", "negative rate", "no interval", "negative restart"],
)
def test_terms_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        spot(**changes)
