"""How much correlated steps vary together: what a formula for independent values must be enlarged by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lag_one_correlation(residuals: NDArray[np.float64]) -> float:
    """Between 0 and 0.8: a negative one is taken as chance, and beyond 0.8 a short series cannot tell
    correlation from drift."""
    spread = float((residuals**2).sum())
    found = float((residuals[1:] * residuals[:-1]).sum()) / spread if spread > 0 else 0.0
    return min(0.8, max(0.0, found))


def variance_inflation(correlation: float) -> float:
    """(1+ρ)/(1−ρ): the variance of a mean of AR(1) values over that of as many independent ones."""
    return (1 + correlation) / (1 - correlation)
