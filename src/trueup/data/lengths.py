"""Example lengths in tokens: summaries, histogram, and what padding they would cost. Shapes: N examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.recipe.models import ShapesSection

from .planner import padding_shares

PLANNED_EXAMPLES = 20_000  # padding is planned for so many at most, evenly spaced


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


def by_part(lengths_N: NDArray[np.int32], supervised_N: NDArray[np.int32]) -> dict[str, dict[str, float]]:
    """Summaries of what carries loss (the answers with their ends) and of the rest (questions, template)."""
    return {"prompt": summary(lengths_N - supervised_N), "answer": summary(supervised_N)}


def padding(lengths_N: NDArray[np.int32], max_length: int) -> dict[str, Any]:
    """Share of processed tokens that would be padding under each strategy, in micro-batches of `max_length`
    tokens."""
    step = -(-len(lengths_N) // PLANNED_EXAMPLES) if len(lengths_N) else 1
    planned_N = lengths_N[::step]
    section = ShapesSection(tokens_per_microbatch=max_length)
    shares = padding_shares(planned_N, section)
    found: dict[str, Any] = {name: round(share, 6) for name, share in shares.items()}
    return {**found, "tokens_per_microbatch": max_length, "examples": len(planned_N)}
