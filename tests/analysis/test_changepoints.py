"""Cutting a series into levels and lines: the cheapest way, without gaps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_series import correlated_noise

from trueup.analysis.changepoints import _SHORTEST, _Cost, _partition, segments


@given(st.lists(st.floats(1e-3, 1e3), min_size=20, max_size=450))
@settings(max_examples=50, deadline=None)
def test_any_series_is_cut_without_gaps(times_s: list[float]) -> None:
    found = segments(np.log(times_s))
    edges = [found[0].start, *(one.end for one in found)]
    assert (edges[0], edges[-1]) == (0, len(times_s))
    assert all(before.end == after.start for before, after in pairwise(found))
    assert all(one.length >= _SHORTEST for one in found)


def cheapest(cost: _Cost, end: int) -> float:
    """By trying every partition of the values before `end`."""
    whole = float(cost(np.array([0]), np.array([end]))[0])
    cuts = range(_SHORTEST, end - _SHORTEST + 1)
    return min(
        [whole, *(cheapest(cost, cut) + float(cost(np.array([cut]), np.array([end]))[0]) for cut in cuts)]
    )


@given(st.integers(0, 2**32 - 1), st.integers(20, 26))
@settings(max_examples=25, deadline=None)
def test_no_partition_is_cheaper(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    values = 0.05 * correlated_noise(rng, n) + np.repeat(rng.normal(0, 0.3, n // 5 + 1), 5)[:n]
    cost = _Cost(values, 0.3)
    edges = np.array(_partition(n, 1, cost))
    assert float(cost(edges[:-1], edges[1:]).sum()) == pytest.approx(cheapest(cost, n))


def test_a_ramp_between_two_levels_is_one_line() -> None:
    at = np.arange(300)
    values = 0.01 * correlated_noise(np.random.default_rng(1), 300) + np.clip((at - 100) / 100, 0, 1)
    found = segments(values)
    assert [one.slope != 0 for one in found] == [False, True, False]
    assert found[1].drift == pytest.approx(1.0, abs=0.05)
    assert (found[0].mean, found[2].mean) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.01))
