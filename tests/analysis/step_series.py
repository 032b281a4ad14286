"""Synthetic step times with a known answer: shifts, drift, spikes and compiles over correlated noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Series(NamedTuple):
    kind: str
    times_s: NDArray[np.float64]
    start: int | None  # where the steady part begins; None: there is none


def correlated_noise(rng: np.random.Generator, n: int, rho: float = 0.3) -> NDArray[np.float64]:
    """AR(1) of unit variance."""
    shocks = rng.standard_normal(n) * np.sqrt(1 - rho**2)
    out = np.empty(n)
    out[0] = rng.standard_normal()
    for k in range(1, n):
        out[k] = rho * out[k - 1] + shocks[k]
    return out


def make_series(rng: np.random.Generator, kind: str) -> Series:
    n = int(rng.integers(60, 501))
    spread = rng.uniform(0.01, 0.05)
    logs = np.log(rng.uniform(0.05, 3.0)) + spread * correlated_noise(rng, n)
    start: int | None = 0
    if kind in ("one shift", "two shifts", "compile"):
        cuts = [int(n * rng.uniform(0.15, 0.6))]
        if kind == "two shifts":
            cuts = [int(n * rng.uniform(0.12, 0.3)), int(n * rng.uniform(0.45, 0.7))]
        for cut in cuts:
            logs[cut:] += rng.choice([-1, 1]) * rng.uniform(3.0, 10.0) * spread
        start = cuts[-1]
    if kind == "drift":
        logs += rng.choice([-1, 1]) * rng.uniform(4.0, 10.0) * spread * np.linspace(0, 1, n)
        start = None
    if kind == "spikes":
        logs[rng.random(n) < 0.03] += rng.uniform(0.5, 2.0)
    if kind == "compile":
        logs[:: int(rng.integers(8, 40))] += rng.uniform(0.7, 2.0)
    return Series(kind, np.exp(logs), start)


KINDS = ("none", "one shift", "two shifts", "drift", "spikes", "compile")
