"""What `trueup calibrate` measured of a device: its ceilings, and how long the parts of a training step take.

A file in the home, read at the edge and passed down. It is of one device in one state of its software; what
was measured under another precision policy or on another device is never put in its place.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .measurement import Frozen, Measurement

AttentionMode = Literal["row", "example"]
# How the two matrices of a product lie in memory: a linear layer's own (rows by a transposed weight), that
# of its inputs' gradient (rows by the weight as it lies), of its weight's (transposed rows by rows).
Layout = Literal["linear", "inputs", "weight"]


class ProductTime(Frozen):
    """Seconds of one multiply of (m, k) by (k, n), the output's memory included. `first_s`: of the very first
    of this size, for which a CPU's library compiles a program, and `program_bytes` what the process grew by
    with it; None where they were not measured."""

    m: int = Field(ge=1)
    k: int = Field(ge=1)
    n: int = Field(ge=1)
    seconds: float = Field(gt=0)
    layout: Layout = "linear"
    first_s: float | None = Field(default=None, gt=0)
    program_bytes: float | None = Field(default=None, ge=0)


class StepRates(Frozen):
    """Of training steps under one precision policy: the products by size, and seconds for a unit of each term
    (analysis/predict_terms.py), fitted to `probes` steps of small random models.

    `error_median` and `error_worst` are relative, of each probe's time by a fit that left it out.
    `attention_program_bytes`: what the process grew by with each product of attention that was made ready,
    as much for every head size; 0 where nothing is compiled for them. `new_width_s`: what the first step of a
    width takes beyond a second one, over what the first ones of its products took alone. `calibrations`: how
    many these are the mean of.
    """

    attention: AttentionMode
    products: tuple[ProductTime, ...]
    term_s: dict[str, float]
    probes: int
    error_median: float
    error_worst: float
    attention_program_bytes: float = Field(default=0.0, ge=0)
    new_width_s: float = Field(default=1.0, ge=0)
    calibrations: int = Field(default=1, ge=1)


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
