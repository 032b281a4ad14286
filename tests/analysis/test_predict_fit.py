"""The fit finds what steps were made of, takes no term for negative, and says how well it foretells."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.analysis.predict_fit import Timed, fitted, seconds_of, spread
from trueup.schema import TrueupError

TRUTH = {"products": 1.1, "hidden": 2e-9, "layers_lora": 3e-4, "trained": 4e-10, "steps": 2e-3}


def probes(count: int, noise: float = 0.0) -> list[Timed]:
    rng = np.random.default_rng(1)
    found = []
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
