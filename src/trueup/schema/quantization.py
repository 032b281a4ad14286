"""What a quantised model folder says of itself: how each matrix is stored, and how it came to be."""

from __future__ import annotations

from typing import Literal

from .measurement import Frozen

Scheme = Literal["int8", "int4", "fp8"]
Method = Literal["rtn", "gptq"]
Owner = Literal["embedding", "head", "embedding and head", "attention", "mlp", "norms", "other"]

BITS: dict[Scheme, int] = {"int8": 8, "int4": 4, "fp8": 8}  # of one value, scales left out
# Where nothing else is asked: inputs that share a scale (None: one for an output), and the head's scheme.
DEFAULT_GROUP: dict[Scheme, int | None] = {"int8": None, "int4": 32, "fp8": None}
DEFAULT_HEAD: dict[Scheme, Scheme] = {"int8": "int8", "int4": "int8", "fp8": "fp8"}
FACTS_FILE = "trueup_quantization.json"  # in a quantised folder


class StoredWeight(Frozen):
    """One quantised matrix. `group`: inputs that share a scale; None: a scale for each output channel."""

    scheme: Scheme
    group: int | None
    method: Method


class OwnerBytes(Frozen):
    """Bytes of the parameters of one part of the model in the original's file and in the quantised one."""

    owner: Owner
    parameters: int
    before: int
    after: int


class RangeCheck(Frozen):
    """The dynamic range of one matrix beside that of fp8 (e4m3), counted before anything was stored.

    `saturated` and `underflowed` values of `values` with the scales that are stored; the `plain` ones as they
    would be without any scale. Largest and smallest are magnitudes of values that are not zero.
    """

    name: str
    values: int
    largest: float
    smallest: float
    saturated: int
    underflowed: int
    plain_saturated: int
    plain_underflowed: int


class LayerError(Frozen):
    """How far a quantised matrix's outputs are from the original's on the same inputs: the norm of the
    difference over that of the outputs. `rtn`: of rounding to the nearest, where another method was used."""

    name: str
    error: float
    rtn: float | None = None


class CalibrationFacts(Frozen):
    """The rows that a method looked at."""

    source: str
    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return self.rows * self.length


class QuantizationFacts(Frozen):
    """The content of trueup_quantization.json.

    `weights` by transformers' parameter name without ".weight". `kept` are stored as they were. `original`
    is the model's public name, `original_digest` that of its folder.
    """

    format: int
    trueup_version: str
    original: str
    original_digest: str
    scheme: Scheme
    method: Method
    group: int | None
    tied_head: bool
    weights: dict[str, StoredWeight]
    kept: tuple[str, ...]
    owners: tuple[OwnerBytes, ...]
    calibration: CalibrationFacts | None = None
    ranges: tuple[RangeCheck, ...] = ()
    errors: tuple[LayerError, ...] = ()

    @property
    def bytes_before(self) -> int:
        return sum(one.before for one in self.owners)

    @property
    def bytes_after(self) -> int:
        return sum(one.after for one in self.owners)

    @property
    def bits_per_weight(self) -> float:
        """Of all parameters, scales and what was kept included."""
        return 8 * self.bytes_after / sum(one.parameters for one in self.owners)
