"""Instants of arrival: Poisson where they are said to be, replayed in order, fixed before any answer."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trueup.load.arrivals import places, poisson, ramp, replayed, until
from trueup.load.trace import TraceRow, read_trace

AZURE = Path(__file__).parents[3] / "shared" / "data" / "azure_llm_conv.csv"


@given(rate=st.floats(0.01, 1000), seed=st.integers(0, 2**32))
def test_gaps_of_poisson_arrivals_are_exponential_and_independent(rate: float, seed: int) -> None:
    instants = list(islice(poisson(rate, seed), 2000))
    gaps = [b - a for a, b in pairwise([0.0, *instants])]
    assert stats.kstest([gap * rate for gap in gaps], "expon").pvalue > 1e-7
    assert abs(stats.spearmanr(gaps[:-1], gaps[1:]).statistic) < 0.15


def test_the_same_seed_gives_the_same_instants_and_another_seed_others() -> None:
    assert list(islice(poisson(2.0, 7), 50)) == list(islice(poisson(2.0, 7), 50))
    assert list(islice(poisson(2.0, 7), 50)) != list(islice(poisson(2.0, 8), 50))


@given(st.floats(0.1, 50), st.integers(0, 1000))
def test_twice_the_rate_halves_every_instant(rate: float, seed: int) -> None:
    slow, fast = (list(islice(poisson(factor * rate, seed), 20)) for factor in (1, 2))
    assert fast == pytest.approx([at_s / 2 for at_s in slow])


@given(
    first=st.floats(0.5, 20), last=st.floats(0.5, 20), over_s=st.floats(50, 200), seed=st.integers(0, 1000)
)
def test_a_ramp_has_the_mean_of_its_rates_and_its_middle_where_they_put_it(
    first: float, last: float, over_s: float, seed: int
) -> None:
    """After half the time (3 first + last) / 8 of 'rate x time' have come; counts are Poisson's."""
    instants = list(ramp(first, last, over_s, seed))
    assert all(a <= b for a, b in pairwise(instants))
    assert all(0 <= at_s <= over_s * (1 + 1e-9) for at_s in instants)
    for part, expected in ((1.0, (first + last) / 2 * over_s), (0.5, (3 * first + last) / 8 * over_s)):
        count = sum(at_s <= part * over_s for at_s in instants)
        assert abs(count - expected) < 6 * expected**0.5 + 1


@given(st.lists(st.floats(0, 1e5), min_size=1), st.floats(0.01, 100))
def test_a_trace_is_replayed_in_order_with_its_gaps_scaled(times: list[float], scale: float) -> None:
    rows = [TraceRow(at_s, 1, 1) for at_s in sorted(times)]
    replay = replayed(rows, scale)
    assert replay[0] == 0.0
    assert replay == pytest.approx([(row.at_s - rows[0].at_s) * scale for row in rows])
    assert replay == sorted(replay)


def test_a_load_ends_by_its_count_or_its_duration_whichever_is_first() -> None:
    assert until(iter([1.0, 2.0, 3.0, 4.0]), 3, None) == [1.0, 2.0, 3.0]
    assert until(iter([1.0, 2.0, 3.0, 4.0]), 3, 2.5) == [1.0, 2.0]


@given(st.integers(1, 50), st.integers(1, 50))
def test_places_go_from_the_first_number_to_the_last_each_as_long_as_any(first: int, last: int) -> None:
    numbers = [places(first, last, n / 1000) for n in range(1001)]
    assert (numbers[0], numbers[-1]) == (first, last)
    assert set(numbers) == set(range(min(first, last), max(first, last) + 1))
    assert all(abs(b - a) <= 1 for a, b in pairwise(numbers))


def test_the_conversation_trace_replays_as_it_was_recorded() -> None:
    if not AZURE.exists():
        pytest.skip(f"{AZURE} is not here")
    trace = read_trace(AZURE, first=200)
    assert trace.rows[0] == TraceRow(0.0, 374, 44)
    assert trace.rows[1] == TraceRow(pytest.approx(4.314579, abs=1e-6), 396, 109)
    assert replayed(trace.rows, 1.0) == [row.at_s for row in trace.rows]
