"""Seconds for a unit of each term of a step, from whole steps that were timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.schema import StepRates, TrueupError

from .predict_terms import MEASURED_ALONE, TERMS

TRUST = 1.0  # a term this much off what its kind takes, relatively, weighs as much as a probe all wrong
FEWEST_PROBES = 8

Timed = tuple[Mapping[str, float], float]  # the terms of a step, and its seconds


def fitted(probes: Sequence[Timed]) -> tuple[dict[str, float], list[float]]:
    """(seconds for a unit of each term, relative error of each probe by a fit without it).

    Least squares of relative errors, no term below 0: none gives time back. First each kind of work gets one
    rate, to which its terms count by their weights; then each term its own, which stays near that unless the
    steps speak against it: a few dozen disturbed steps cannot tell terms apart that grow together. What was
    measured alone stays near its own seconds.
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


def together(before: StepRates, now: StepRates) -> StepRates:
    """The mean of calibrations of one machine at several times; `now` alone where they differ in what they
    measured."""
    old = {(one.m, one.k, one.n, one.layout): one for one in before.products}
    new = {(one.m, one.k, one.n, one.layout): one for one in now.products}
    same = old.keys() == new.keys() and before.term_s.keys() == now.term_s.keys()
    if not same or before.attention != now.attention:
        return now
    count = before.calibrations

    def mean(earlier: float, latest: float) -> float:
        return (count * earlier + latest) / (count + 1)

    return now.model_copy(
        update={
            "products": tuple(
                one.model_copy(update={"seconds": mean(old[key].seconds, one.seconds)})
                for key, one in new.items()
            ),
            "term_s": {name: mean(before.term_s[name], value) for name, value in now.term_s.items()},
            "new_width_s": mean(before.new_width_s, now.new_width_s),
            "error_median": mean(before.error_median, now.error_median),
            "error_worst": max(before.error_worst, now.error_worst),
            "calibrations": count + 1,
        }
    )


def _fit(probes: Sequence[Timed]) -> dict[str, float]:
    names = [name for name in TERMS if any(terms.get(name) for terms, _ in probes)]
    kinds = {name: TERMS[name].like for name in names}
    by_kind = [(_gathered(terms), seconds) for terms, seconds in probes]
    rates = _near(by_kind, {kind: 1.0 for kind in kinds.values() if kind in MEASURED_ALONE})
    near = {name: rates[kind] * TERMS[name].weight for name, kind in kinds.items() if rates[kind] > 0}
    known = [({name: terms.get(name, 0.0) for name in near}, seconds) for terms, seconds in probes]
    return dict.fromkeys(names, 0.0) | _near(known, near)


def _gathered(terms: Mapping[str, float]) -> dict[str, float]:
    """The work of each kind."""
    found: dict[str, float] = {}
    for name, amount in terms.items():
        term = TERMS[name]
        found[term.like] = found.get(term.like, 0.0) + term.weight * amount
    return found


def _near(probes: Sequence[Timed], expected: Mapping[str, float]) -> dict[str, float]:
    """Seconds for a unit of each amount that these steps have, each near what is expected of it."""
    from scipy.optimize import nnls

    names = list(dict.fromkeys(name for terms, _ in probes for name in terms))
    rows = np.array([[terms.get(name, 0.0) / seconds for name in names] for terms, seconds in probes])
    trust: NDArray[Any] = np.array(
        [
            [1.0 / (TRUST * value) if name == known else 0.0 for name in names]
            for known, value in expected.items()
            if known in names
        ]
    ).reshape(-1, len(names))
    goal = np.concatenate([np.ones(len(probes)), np.full(len(trust), 1.0 / TRUST)])
    both = np.concatenate([rows, trust])
    scale = both.max(axis=0)  # columns of one size: the terms span ten decades
    scale[scale == 0] = 1.0
    found, _ = nnls(both / scale, goal)
    return {name: float(value) for name, value in zip(names, found / scale, strict=True)}
