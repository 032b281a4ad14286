"""The steady part of a run: found where there is one, denied where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_records import make_step
from step_series import KINDS, correlated_noise, make_series

from trueup.analysis.steady import FEWEST, find_plateau, steady_part, steps_inside
from trueup.schema import Step

EACH_KIND = 15


def right(kind: str, rng: np.random.Generator) -> bool:
    series = make_series(rng, kind)
    found = find_plateau(series.times_s)
    if series.start is None:
        return found.verdict == "no steady state" and found.start is None
    return found.start is not None and abs(found.start - series.start) <= 5


@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_series(kind: str) -> None:
    """A smaller set of what a benchmark runs a thousand of. One miss is allowed."""
    rng = np.random.default_rng(KINDS.index(kind))
    assert sum(right(kind, rng) for _ in range(EACH_KIND)) >= EACH_KIND - 1


@pytest.mark.parametrize("n", [25, 40, 59])
def test_short_runs(n: int) -> None:
    rng = np.random.default_rng(n)
    noise = [0.05 * correlated_noise(rng, n) for _ in range(20)]
    at = np.arange(n)
    level = [find_plateau(np.exp(one)) for one in noise]
    assert sum(found.verdict == "steady" for found in level) >= 19
    slow_start = [find_plateau(np.exp(one + 0.7 * (at < 6))) for one in noise]
    assert all(found.start is None or found.start >= 5 for found in slow_start)
    assert sum(found.verdict == "steady" for found in slow_start) >= 18
    drifting = [find_plateau(np.exp(one + 0.6 * at / n)) for one in noise]
    assert sum(found.verdict == "no steady state" for found in drifting) >= 18
    late = [find_plateau(np.exp(one + 0.6 * (at > 0.75 * n))) for one in noise]
    assert sum(found.verdict == "no steady state" for found in late) >= 18


def test_a_neighbour_at_the_end_is_cut_off_and_named() -> None:
    rng = np.random.default_rng(5)
    logs = 0.03 * correlated_noise(rng, 300)
    logs[285:] += 1.0
    found = find_plateau(np.exp(logs))
    assert found.verdict == "steady"
    assert found.end is not None
    assert abs(found.end - 285) <= 2
    assert "changes again" in found.reason


def test_a_change_of_spread_is_a_change() -> None:
    rng = np.random.default_rng(6)
    spread = np.where(np.arange(240) < 100, 0.12, 0.03)
    found = find_plateau(np.exp(spread * correlated_noise(rng, 240)))
    assert found.start is not None
    assert abs(found.start - 100) <= 8


def test_long_series_are_cut_exactly_though_on_a_grid() -> None:
    rng = np.random.default_rng(7)
    found = find_plateau(np.exp(0.03 * correlated_noise(rng, 4000) + 0.3 * (np.arange(4000) < 1237)))
    assert found.start is not None
    assert abs(found.start - 1237) <= 5


@given(st.floats(1e-3, 1e3))
@settings(max_examples=10, deadline=None)
def test_the_unit_of_time_does_not_matter(factor: float) -> None:
    times_s = make_series(np.random.default_rng(8), "one shift").times_s
    assert find_plateau(times_s * factor)[:3] == find_plateau(times_s)[:3]


def test_too_short_says_how_many_are_needed() -> None:
    found = find_plateau([1.0] * (FEWEST - 1))
    assert found.verdict == "too short"
    assert str(FEWEST) in found.reason


@pytest.mark.parametrize("n", [20, 59, 60, 200])
def test_equal_times_are_steady(n: int) -> None:
    """A coarse clock gives equal readings, whose variance is 0."""
    found = find_plateau([0.5] * n)
    assert (found.verdict, found.start, found.end) == ("steady", 0, n)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_time_gives_no_steady_state(bad: float) -> None:
    assert find_plateau([1.0] * 30 + [bad]).verdict == "no steady state"


def labelled_steps() -> list[Step]:
    rng = np.random.default_rng(9)
    times_s = np.exp(0.02 * correlated_noise(rng, 80))
    steps = []
    for number in range(1, 81):
        event = number == 1 or number % 10 == 0
        labels = ("after_evaluate",) if event else ()
        steps.append(
            make_step(number, step_s=float(times_s[number - 1]) * (5 if event else 1), labels=labels)
        )
    return steps


def test_steps_with_an_event_are_set_aside() -> None:
    steps = labelled_steps()
    verdict = steady_part(steps)
    assert verdict["verdict"] == "steady"
    assert (verdict["start_step"], verdict["end_step"]) == (2, 79)
    inside = steps_inside(steps, verdict)
    assert len(inside) == verdict["n"] == 71
    assert not any(step.labels for step in inside)


def test_no_verdict_no_steps() -> None:
    steps = labelled_steps()[:10]
    verdict = steady_part(steps)
    assert verdict["verdict"] == "too short"
    assert (verdict["start_step"], verdict["end_step"], verdict["n"]) == (None, None, 0)
    assert steps_inside(steps, verdict) == []
    assert steps_inside(steps, None) == []
