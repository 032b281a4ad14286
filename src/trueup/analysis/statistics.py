"""Statistics of one run's steps, which are correlated: what follows from them alone is `within_run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .student import quantile

INTERVAL_NEEDS = 20
RESAMPLES = 2000


class Interval(NamedTuple):
    """A 95% interval, or none and the reason."""

    ci: tuple[float, float] | None
    method: str
    reason: str | None


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation between order statistics. `values` must not be empty."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), percent))


def jitter(values: Sequence[float]) -> float:
    """Standard deviation (n - 1) over mean. At least two values with a positive mean."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.std(ddof=1) / array.mean())


def ratio_interval_within_run(
    tokens: Sequence[float], seconds: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """95% interval of Σtokens/Σseconds over consecutive steps, by a block bootstrap of its logarithm.

    Circular moving blocks (Politis and Romano 1992) of about n^0.4 steps keep neighbours together. A
    percentile interval of so few blocks is too narrow, so the bootstrap gives the standard error and
    Student's t for the number of blocks the width. The seed is fixed: a run always shows the same interval.
    """
    n = len(tokens)
    if n != len(seconds):
        raise ValueError(f"{n} token counts for {len(seconds)} step times")
    if n < INTERVAL_NEEDS:
        return Interval(None, "", f"{n} steady steps; an interval needs {INTERVAL_NEEDS}")
    length = round(n**0.4)
    blocks = n / length
    sums = np.stack([_circular_block_sums(tokens, length), _circular_block_sums(seconds, length)])
    picks = np.random.default_rng(seed).integers(0, n, size=(resamples, round(blocks)))
    resampled = sums[:, picks].sum(axis=2)
    error = float(np.log(resampled[0] / resampled[1]).std(ddof=1)) * math.sqrt(blocks / (blocks - 1))
    reach = math.exp(quantile(blocks - 1, 0.975) * error)
    ratio = math.fsum(tokens) / math.fsum(seconds)
    method = f"within_run: circular block bootstrap, blocks of {length} steps, {resamples} resamples"
    return Interval((ratio / reach, ratio * reach), method, None)


def _circular_block_sums(values: Sequence[float], length: int) -> NDArray[np.float64]:
    """Sum of every stretch of `length` consecutive values, the last followed by the first again."""
    array = np.asarray(values, dtype=np.float64)
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([array, array[: length - 1]]))])
    sums: NDArray[np.float64] = running[length:] - running[:-length]
    return sums
