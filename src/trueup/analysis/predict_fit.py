"""Seconds for a unit of each term of a step, from whole steps that were timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.schema import TrueupError

from .predict_terms import MEASURED_ALONE, TERMS

TRUST = 1.0  # a factor this far from 1 on what was measured alone weighs as much as a probe all wrong
FEWEST_PROBES = 8

Timed = tuple[Mapping[str, float], float]  # the terms of a step, and its seconds


def fitted(probes: Sequence[Timed]) -> tuple[dict[str, float], list[float]]:
    """(seconds for a unit of each term, relative error of each probe by a fit without it).

    Least squares of relative errors, no term below 0: none gives time back. The products' own seconds keep
    factors near 1 unless the steps speak against it.
    """
    if len(probes) < FEWEST_PROBES:
        raise TrueupError(
            f"{len(probes)} timed steps are too few to fit {len(TERMS)} terms to; at least {FEWEST_PROBES}"
        )
    errors = []
    for left_out in range(len(probes)):
        rest = [one for at, one in enumerate(probes) if at != left_out]
        terms, seconds = probes[left_out]
        errors.append(seconds_of(terms, _fit(rest)) / seconds - 1)
    return _fit(probes), errors


def seconds_of(terms: Mapping[str, float], term_s: Mapping[str, float]) -> float:
    """Of a step with these terms."""
    return sum(amount * term_s.get(name, 0.0) for name, amount in terms.items())


def spread(errors: Sequence[float]) -> tuple[float, float]:
    """(median, largest) size of the errors."""
    sizes = [abs(error) for error in errors]
    return median(sizes), max(sizes)


def _fit(probes: Sequence[Timed]) -> dict[str, float]:
    from scipy.optimize import nnls

    names = [name for name in TERMS if any(terms.get(name) for terms, _ in probes)]
    rows = np.array([[terms.get(name, 0.0) / seconds for name in names] for terms, seconds in probes])
    goal = np.ones(len(probes))
    # The rows that hold the measured products to their seconds, each as strong as a probe.
    trust: NDArray[Any] = np.array(
        [
            [1.0 / TRUST if name == known else 0.0 for name in names]
            for known in MEASURED_ALONE
            if known in names
        ]
    ).reshape(-1, len(names))
    scale = np.concatenate([rows, trust]).max(axis=0)  # columns of one size: the terms span ten decades
    found, _ = nnls(np.concatenate([rows, trust]) / scale, np.concatenate([goal, trust.max(axis=1)]))
    return {name: float(value) for name, value in zip(names, found / scale, strict=True)}
