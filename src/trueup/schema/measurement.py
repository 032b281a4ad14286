"""A measurement: a value that says how it came to be, or a reason why there is none."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

Kind = Literal["measured", "derived", "estimated", "quoted", "predicted", "unavailable"]
Scope = Literal["process", "device", "node"]


class Frozen(BaseModel):
    """Base of every record: immutable, and an unknown key is an error.

    A loss of NaN is written to JSON as the string "NaN", which is valid JSON and reads back as NaN;
    pydantic's own choice, null, would make the record of a diverged step unreadable. A model's validator is
    built at its first use: no command uses more than a few of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)


class Measurement(Frozen):
    """One figure. `unit` is spelled out ("s", "tokens/s", "bytes", "1" for a ratio).

    `method` says in a few words how the value was obtained; `ci` is a 95% interval whose making is named
    by `ci_method` (an interval from one run's steps is "within_run" and never feeds a verdict).
    """

    value: float | None = None
    unit: str
    kind: Kind
    method: str = ""
    scope: Scope = "process"
    n: int | None = None
    ci: tuple[float, float] | None = None
    ci_method: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _value_or_reason(self) -> Self:
        if (self.value is None) != (self.kind == "unavailable"):
            raise ValueError("a measurement has a value, or is 'unavailable'; never both, never neither")
        if self.kind == "unavailable" and not self.reason:
            raise ValueError("an unavailable measurement carries its reason")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a measurement is finite, not {self.value}; say 'unavailable' with the reason")
        return self


def unavailable(
    unit: str, reason: str, *, method: str = "", scope: Scope = "process", n: int | None = None
) -> Measurement:
    """The measurement that could not be made, and why."""
    return Measurement(unit=unit, kind="unavailable", method=method, scope=scope, n=n, reason=reason)
