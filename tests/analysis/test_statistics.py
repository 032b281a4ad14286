"""Interval of one run's rate, percentiles and jitter."""

from __future__ import annotations

import numpy as np
import pytest
from step_series import correlated_noise

from trueup.analysis.names import P99_NEEDS
from trueup.analysis.statistics import (
    INTERVAL_NEEDS,
    jitter,
    percentile,
    ratio_interval_within_run,
)


def test_p99_needs_299() -> None:
    assert 0.99**P99_NEEDS <= 0.05 < 0.99 ** (P99_NEEDS - 1)


def test_percentile_and_jitter() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 90) == pytest.approx(4.6)
    assert jitter([1.0, 2.0, 3.0]) == pytest.approx(0.5)


def test_interval_covers_the_truth_despite_correlated_steps() -> None:
    """95% nominal. Correlation 0.3 would bring independent resampling to about 85%."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(300):
        seconds = np.exp(0.1 * correlated_noise(rng, 120))
        interval = ratio_interval_within_run([500.0] * 120, seconds.tolist(), resamples=300)
        assert interval.ci is not None
        inside += interval.ci[0] <= 500 / np.exp(0.005) <= interval.ci[1]
    assert 0.90 <= inside / 300 <= 0.98


def test_interval_contains_the_ratio_and_is_repeatable() -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(300, 512, 60).astype(float).tolist()
    seconds = rng.uniform(1, 2, 60).tolist()
    first, second = (ratio_interval_within_run(tokens, seconds) for _ in range(2))
    assert first == second
    assert first.ci is not None
    assert first.ci[0] < sum(tokens) / sum(seconds) < first.ci[1]
    assert first.method.startswith("within_run")


def test_few_steps_give_no_interval_and_say_so() -> None:
    few = [1.0] * (INTERVAL_NEEDS - 1)
    interval = ratio_interval_within_run(few, few)
    assert interval.ci is None
    assert str(INTERVAL_NEEDS) in (interval.reason or "")


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="3 token counts for 2"):
        ratio_interval_within_run([1.0] * 3, [1.0] * 2)
