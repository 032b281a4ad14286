"""The fit finds what steps were made of, takes no term for negative, and says how well it foretells."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.analysis.predict_fit import Timed, fitted, seconds_of, spread, together
from trueup.analysis.predict_terms import TERMS
from trueup.schema import ProductTime, StepRates, TrueupError

TRUTH = {"products": 1.1} | {
    name: rate * TERMS[name].weight
    for rate, names in ((1e-11, ("hidden", "feed")), (6e-6, ("layers_lora", "steps")), (2e-11, ("trained",)))
    for name in names
}


def probes(count: int, noise: float = 0.0) -> list[Timed]:
    rng = np.random.default_rng(1)
    found: list[Timed] = []
    for _ in range(count):
        sizes = 10.0 ** rng.uniform(-1, 1, len(TRUTH))
        terms = {
            name: float(size / value * 0.01) for (name, value), size in zip(TRUTH.items(), sizes, strict=True)
        }
        found.append((terms, seconds_of(terms, TRUTH) * float(rng.lognormal(0, noise) if noise else 1.0)))
    return found


def test_exact_steps_give_back_what_they_are_made_of() -> None:
    term_s, errors = fitted(probes(20))
    assert term_s == pytest.approx(TRUTH, rel=0.05)  # the products a little nearer to 1
    assert spread(errors)[1] < 0.05


def test_disturbed_steps_are_foretold_about_as_well_as_they_are_disturbed() -> None:
    _, errors = fitted(probes(40, noise=0.05))
    middle, worst = spread(errors)
    assert middle < 0.10
    assert worst < 0.40


def test_no_term_gives_time_back() -> None:
    assert min(fitted(probes(12, noise=0.5))[0].values()) >= 0


def test_products_measured_alone_keep_their_seconds_where_steps_do_not_speak_against_it() -> None:
    same = [({"products": 0.5, "hidden": 1e6 * n, "steps": 1.0}, 0.5 + 1e-3 * n) for n in range(1, 12)]
    assert fitted(same)[0]["products"] == pytest.approx(1.0, abs=0.1)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(TrueupError, match="3 timed steps are too few"):
        fitted(probes(3))


def test_terms_that_grow_together_share_what_their_kind_takes() -> None:
    """Nothing tells them apart: each keeps its weight of the rate, none takes all."""
    both = {name: TERMS[name].weight * 1e-11 for name in ("hidden", "queries")}
    timed: list[Timed] = []
    for n in range(1, 12):
        terms = {"hidden": 1e7 * n, "queries": 2e7 * n, "steps": 1.0}
        timed.append((terms, seconds_of(terms, both | {"steps": 1e-3})))
    found = fitted(timed)[0]
    assert {name: found[name] for name in both} == pytest.approx(both, rel=0.1)


def test_a_term_leaves_its_kind_as_far_as_steps_speak_against_it() -> None:
    truth = {"hidden": TERMS["hidden"].weight * 1e-11, "feed": 3 * TERMS["feed"].weight * 1e-11}
    rng = np.random.default_rng(2)
    timed: list[Timed] = []
    for _ in range(40):
        terms = {name: float(10.0 ** rng.uniform(6, 8)) for name in truth}
        timed.append((terms, seconds_of(terms, truth)))
    found = fitted(timed)[0]
    assert 1.5 < found["feed"] / found["hidden"] / (TERMS["feed"].weight / TERMS["hidden"].weight) < 3.1


def test_calibrations_of_several_times_are_averaged() -> None:
    first, second, third = (rates(seconds=s) for s in (1.0, 2.0, 6.0))
    found = together(together(first, second), third)
    assert found.calibrations == 3
    assert found.products[0].seconds == pytest.approx(3.0)
    assert found.term_s == pytest.approx({"steps": 3.0})


def test_a_calibration_of_other_products_takes_the_place_of_an_earlier_one() -> None:
    latest = rates(seconds=2.0, m=32)
    assert together(rates(seconds=1.0), latest) == latest


def rates(*, seconds: float, m: int = 16) -> StepRates:
    return StepRates(
        attention="example",
        products=(ProductTime(m=m, k=16, n=16, seconds=seconds),),
        term_s={"steps": seconds},
        probes=9,
        error_median=0.1,
        error_worst=0.2,
    )
