"""The steady part of a run: found where there is one, denied where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_records import make_step
from step_series import KINDS, Series, correlated_noise, make_series

from trueup.analysis.steady import FEWEST, find_plateau, steady_part, steps_inside
from trueup.schema import Step

EACH_KIND = 125  # of eight kinds: a thousand series
SEED = 20261130  # the detector was chosen on others, bench/steady_detector.py has them


def place(series: Series, *, labelled: bool) -> tuple[str, int | None, int | None]:
    """Verdict, start and end (exclusive) as indices into the series, with its compiles labelled or not."""
    if not labelled:
        return find_plateau(series.times_s)[:3]
    found = steady_part(
        [
            make_step(number, step_s=float(time_s), labels=("compile",) if compiled else ())
            for number, (time_s, compiled) in enumerate(zip(series.times_s, series.compiled, strict=True))
        ]
    )
    last = found["end_step"]
    return found["verdict"], found["start_step"], None if last is None else last + 1


def right(series: Series, *, labelled: bool = False) -> bool:
    """Within 5 steps of every change; where there is none, the whole series."""
    verdict, start, end = place(series, labelled=labelled)
    if series.start is None or series.end is None:
        return verdict == "no steady state" and start is None and end is None
    if start is None or end is None:
        return False
    plain = np.flatnonzero(~series.compiled) if labelled else np.arange(len(series.times_s))
    n = len(series.times_s)
    start_right = start == plain[0] if series.start == 0 else abs(start - series.start) <= 5
    end_right = end == plain[-1] + 1 if series.end == n else abs(end - series.end) <= 5
    return bool(start_right and end_right)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_synthetic_series(kind: str) -> None:
    rng = np.random.default_rng([SEED, KINDS.index(kind)])
    compiles = kind.startswith("compile")
    good = [right(make_series(rng, kind), labelled=compiles and k % 2 == 0) for k in range(EACH_KIND)]
    assert np.mean(good) >= 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_series_of_46_to_59_steps(kind: str) -> None:
    """Too few for two close changes to be told apart as surely."""
    rng = np.random.default_rng([SEED + 1, KINDS.index(kind)])
    assert np.mean([right(make_series(rng, kind, steps=(46, 59))) for _ in range(60)]) >= 0.9


@pytest.mark.parametrize("n", [20, 25, 40, 59])
def test_short_runs(n: int) -> None:
    rng = np.random.default_rng(n)
    noise = [0.03 * correlated_noise(rng, n) for _ in range(40)]
    at = np.arange(n)
    level = [find_plateau(np.exp(one)) for one in noise]
    assert sum(found[:3] == ("steady", 0, n) for found in level) >= 38
    slow_start = [find_plateau(np.exp(one + 0.7 * (at < 6))) for one in noise]
    assert sum(found.start == 6 for found in slow_start) >= 38
    drifting = [find_plateau(np.exp(one + np.log(1.2) * at / n)) for one in noise]
    assert sum(found.verdict == "no steady state" for found in drifting) >= 36
    late = [find_plateau(np.exp(one + 0.6 * (at >= n - 6))) for one in noise]
    assert sum(found[1:3] == (0, n - 6) for found in late) >= 38


def levels(*pieces: tuple[int, float], seed: int = 4) -> list[float]:
    """Step times with 3% of noise over levels, each (steps, seconds)."""
    seconds = np.concatenate([np.full(count, level) for count, level in pieces])
    noise = 0.03 * correlated_noise(np.random.default_rng(seed), len(seconds))
    return [float(one) for one in seconds * np.exp(noise)]


@pytest.mark.parametrize("ratio", [1.2, 2.0, 4.0])
def test_steps_of_two_kinds_in_random_order_are_one_level(ratio: float) -> None:
    """As batches of two shapes are: neither kind is a spike, and no run of one kind a plateau."""
    rng = np.random.default_rng(10)
    found = [
        find_plateau(np.where(rng.random(200) < 0.5, 1.0, ratio) * np.exp(0.02 * rng.standard_normal(200)))
        for _ in range(20)
    ]
    assert sum(one[:3] == ("steady", 0, 200) for one in found) >= 19


def test_a_slow_end_is_steady_and_names_the_faster_stretch_before_it() -> None:
    found = find_plateau(levels((150, 1.0), (100, 1.5)))
    assert (found.verdict, found.start, found.end) == ("steady", 150, 250)
    assert "+5" in found.reason
    assert "from an earlier stretch of 150 steps" in found.reason


def test_a_fast_end_names_no_disturbance() -> None:
    found = find_plateau(levels((150, 1.5), (100, 1.0)))
    assert (found.start, found.end) == (150, 250)
    assert found.reason == "level holds for 100 steps"


@pytest.mark.parametrize("after", [12, 100])
def test_a_disturbance_that_went_away_is_not_the_steady_part(after: int) -> None:
    found = find_plateau(levels((100, 1.0), (120, 2.0), (after, 1.0)))
    assert (found.start, found.end) == ((0, 100) if after < 20 else (220, 320))


def test_a_level_that_never_holds_is_not_steady() -> None:
    found = find_plateau(levels(*((14, 1.0 + 0.5 * (k % 2)) for k in range(16))))
    assert found.verdict == "no steady state"
    assert "keeps changing" in found.reason


def test_a_drift_that_ends_is_followed_by_a_steady_part() -> None:
    logs = 0.02 * correlated_noise(np.random.default_rng(3), 300) + 0.3 * np.maximum(
        0, 1 - np.arange(300) / 100
    )
    found = find_plateau(np.exp(logs))
    assert found.verdict == "steady"
    assert found.start is not None
    assert abs(found.start - 100) <= 15
    assert found.end == 300


@pytest.mark.parametrize("n", [40, 300])
def test_a_change_that_does_not_matter_is_none(n: int) -> None:
    """Noise of 0.05% shows a shift of 0.5% and a drift of 1% plainly."""
    at = np.arange(n)
    noise = 0.0005 * correlated_noise(np.random.default_rng(n), n)
    for change in (0.005 * (at > n // 2), 0.01 * at / n):
        assert find_plateau(np.exp(noise + change))[:3] == ("steady", 0, n)


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
    starts = [find_plateau(np.exp(spread * correlated_noise(rng, 240))).start for _ in range(20)]
    assert sum(start is not None and abs(start - 100) <= 8 for start in starts) >= 17


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
