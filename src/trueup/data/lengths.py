"""Example lengths in tokens: summary and histogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def summary(lengths_N: NDArray[np.int32]) -> dict[str, float]:
    """min, p50, p90, p99, max, total; percentiles are observed lengths (nearest rank). N > 0."""
    p50, p90, p99 = np.percentile(lengths_N, (50, 90, 99), method="inverted_cdf")
    return {
        "min": int(lengths_N.min()),
        "p50": int(p50),
        "p90": int(p90),
        "p99": int(p99),
        "max": int(lengths_N.max()),
        "total": int(lengths_N.sum(dtype=np.int64)),
    }


def histogram(lengths_N: NDArray[np.int32], bins: int = 16) -> list[tuple[int, int, int]]:
    """(from, to exclusive, count) in at most `bins` equal steps of a multiple of 8 tokens."""
    step = -(-(int(lengths_N.max()) + 1) // bins)
    step = -(-step // 8) * 8
    counts = np.bincount(np.asarray(lengths_N) // step)
    return [(n * step, (n + 1) * step, int(count)) for n, count in enumerate(counts)]
