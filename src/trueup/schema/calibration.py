"""What `trueup calibrate` measured of a device: its ceilings, and how long the parts of a training step take.

A file in the home, read at the edge and passed down. It is of one device in one state of its software; what
was measured under another precision policy or on another device is never put in its place.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .measurement import Frozen, Measurement

AttentionMode = Literal["row", "example"]


class ProductTime(Frozen):
    """Seconds of one multiply of (m, k) by (k, n), the output's memory included. `first_s`: of the very first
    of this size, for which a CPU's library compiles a program; None where it was not measured."""

    m: int = Field(ge=1)
    k: int = Field(ge=1)
    n: int = Field(ge=1)
    seconds: float = Field(gt=0)
    first_s: float | None = Field(default=None, gt=0)


class StepRates(Frozen):
    """Of training steps under one precision policy: the products by size, and seconds for a unit of each term
    (analysis/predict_terms.py), fitted to `probes` steps of small random models.

    `error_median` and `error_worst` are relative, of each probe's time by a fit that left it out.
    """

    attention: AttentionMode
    products: tuple[ProductTime, ...]
    term_s: dict[str, float]
    probes: int
    error_median: float
    error_worst: float


class Calibration(Frozen):
    """`measurements` by name: ceilings, memory bandwidth, what a process takes before it has a model, the
    seconds of assembling batches, power. `rates` by precision policy."""

    format: Literal[1] = 1
    name: str
    device_kind: str
    device_name: str
    threads: int
    trueup_version: str
    torch_version: str
    made_at: str  # ISO 8601 UTC
    seconds: float  # what measuring took
    measurements: dict[str, Measurement]
    rates: dict[str, StepRates] = Field(default_factory=dict)
