"""Whether two sides of a comparison are the same within a tolerance, and where they first part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from trueup.schema import Frozen, InputError
from trueup.schema.parity import BatchFacts, Compared, NotCompared, SideFacts

# Relative errors in norm. A unit roundoff is 6e-8 in fp32 and 4e-3 in bf16; errors of the layers add up.
# docs/parity.md has what was measured on the built-in models.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
GRADIENT_FACTOR = 10.0  # of the defaults: a gradient is a sum in which large terms cancel
PRECISION_WORDS = {"float32": "fp32", "bfloat16": "bf16"}


class Parity(Frozen):
    """The verdict and all it rests on. `compared` is ordered worst first; `first_over` is the label of the
    first output over the tolerance in the order of execution."""

    a: SideFacts
    b: SideFacts
    batch: BatchFacts
    verdict: Literal["within", "over"]
    tolerance: float
    gradient_tolerance: float
    tolerance_reason: str
    identical: bool
    same_weights: bool
    over: int
    first_over: str | None
    compared: tuple[Compared, ...]
    not_compared: tuple[NotCompared, ...]

    def is_over(self, one: Compared) -> bool:
        return _is_over(one, self.gradient_tolerance if one.kind == "gradient" else self.tolerance)


def judge(
    a: SideFacts,
    b: SideFacts,
    batch: BatchFacts,
    compared: Sequence[Compared],
    not_compared: Sequence[NotCompared],
    *,
    tolerance: float | None = None,
) -> Parity:
    """`tolerance`: of the relative error of every output; None takes the defaults of the lower precision.
    Raises InputError where the sides have nothing in common, or the tolerance is not one."""
    if not compared:
        raise InputError(
            f"{a.subject} and {b.subject} have no output in common, so there is nothing to compare; "
            "give two models of one architecture"
        )
    limit, of_gradients, reason = _tolerances(a, b, tolerance)
    limits = {"gradient": of_gradients}
    over = [one for one in compared if _is_over(one, limits.get(one.kind, limit))]
    first = min(over, key=lambda one: one.order, default=None)
    return Parity(
        a=a,
        b=b,
        batch=batch,
        verdict="over" if over else "within",
        tolerance=limit,
        gradient_tolerance=of_gradients,
        tolerance_reason=reason,
        identical=all(one.nonfinite is None and one.max_abs == 0 for one in compared),
        same_weights=a.weights_digest == b.weights_digest,
        over=len(over),
        first_over=first.label if first else None,
        compared=tuple(sorted(compared, key=_worst_first)),
        not_compared=tuple(not_compared),
    )


def require_tolerance(asked: float) -> None:
    """Raises InputError where it is not one."""
    if not (math.isfinite(asked) and asked >= 0):
        raise InputError(f"--tolerance {asked}: a relative error is a number from 0 up")


def _is_over(one: Compared, tolerance: float) -> bool:
    """True too where a side has a number that is not finite, or the error itself is not a number."""
    return one.nonfinite is not None or not one.relative <= tolerance


def _worst_first(one: Compared) -> tuple[bool, float, int]:
    unknown = one.nonfinite is not None or math.isnan(one.relative)
    return not unknown, 0.0 if unknown else -one.relative, one.order


def _tolerances(a: SideFacts, b: SideFacts, asked: float | None) -> tuple[float, float, str]:
    """Of all but gradients, of gradients, and why."""
    if asked is not None:
        require_tolerance(asked)
        return asked, asked, "given on the command line"
    dtypes = (a.compute_dtype, b.compute_dtype)
    for dtype in dtypes:
        if dtype not in TOLERANCES:
            raise InputError(f"there is no default tolerance for {dtype}; give --tolerance")
    lower = max(dtypes, key=lambda dtype: TOLERANCES[dtype])
    whose = "both sides" if dtypes[0] == dtypes[1] else "the lower precision"
    limit = TOLERANCES[lower]
    return limit, GRADIENT_FACTOR * limit, f"the default of {PRECISION_WORDS[lower]}, {whose}"
