"""Owning a machine: what an hour costs, and when it has paid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trueup.analysis.owning import owning_break_even_hours, running_per_hour
from trueup.analysis.price_models import cost_of
from trueup.schema import InputError, Measurement, OwnedTerms, unavailable


def owned(**changes: object) -> OwnedTerms:
    fields: dict[str, object] = {
        "currency": "USD", "capital": 300_000, "life_years": 4, "residual": 20_000, "power_w": 7000,
        "pue": 1.3, "electricity_per_kwh": 0.12, "hosting_per_year": 12_000, "staff_per_year": 20_000,
        "hours_per_year": 7000, "source": "an offer",
    }  # fmt: skip
    return OwnedTerms.model_validate(fields | changes)


def rent(value: float, unit: str = "USD/h") -> Measurement:
    return Measurement(value=value, unit=unit, kind="derived")


machines = st.builds(
    owned,
    capital=st.floats(1e3, 1e6),
    residual=st.floats(0, 1e3),
    life_years=st.floats(1, 8),
    power_w=st.floats(100, 1e5),
    idle_power_w=st.floats(0, 1000),
    pue=st.floats(1, 2),
    electricity_per_kwh=st.floats(0.01, 1),
    staff_per_year=st.floats(0, 1e5),
    hours_per_year=st.floats(100, 8760),
)


def test_an_hour_holds_capital_electricity_hosting_and_staff() -> None:
    cost = cost_of(owned(idle_power_w=1000), 3600)
    electricity = 7 * 1.3 * 0.12 + 1 * 1.3 * 0.12 * (8760 - 7000) / 7000
    assert cost.parts["capital_per_hour"].value == pytest.approx((300_000 - 20_000) / (4 * 7000))
    assert cost.parts["running_per_hour"].value == pytest.approx(electricity + 32_000 / 7000)
    parts = sum(part.value or 0 for part in cost.parts.values())
    assert cost.total.value == pytest.approx(parts)
    assert cost.per_hour.value == pytest.approx(parts)
    assert (cost.total.kind, cost.total.unit) == ("estimated", "USD")
    assert "7000 h a year" in cost.notes[0]


@given(terms=machines)
def test_the_hours_of_a_life_pay_for_the_machine(terms: OwnedTerms) -> None:
    """All used hours of its life cost capital less residual, electricity, hosting and staff: no more, no
    less."""
    used_h = terms.life_years * terms.hours_per_year
    idle_h = terms.life_years * (8760 - terms.hours_per_year)
    kwh = (terms.power_w * used_h + terms.idle_power_w * idle_h) / 1000 * terms.pue
    yearly = terms.life_years * (terms.hosting_per_year + terms.staff_per_year)
    spent = terms.capital - terms.residual + kwh * terms.electricity_per_kwh + yearly
    assert cost_of(terms, used_h * 3600).total.value == pytest.approx(spent, rel=1e-9)


@given(terms=machines, rented=st.floats(1, 1000))
def test_at_the_break_even_owning_has_cost_what_renting_would(terms: OwnedTerms, rented: float) -> None:
    running = running_per_hour(terms).value or 0.0
    hours = owning_break_even_hours(terms, rent(rented))
    if hours.value is None:
        lived = terms.life_years * terms.hours_per_year
        assert terms.capital - terms.residual > (rented - running) * lived * (1 - 1e-9)
        assert "never" in (hours.reason or "")
    else:
        own = terms.capital - terms.residual + running * hours.value
        assert own == pytest.approx(rented * hours.value, rel=1e-6)


def test_the_break_even_is_capital_over_what_an_hour_saves() -> None:
    terms = owned(residual=0, hosting_per_year=0, staff_per_year=0)
    hours = owning_break_even_hours(terms, rent(21.5))
    assert hours.value == pytest.approx(300_000 / (21.5 - 7 * 1.3 * 0.12))
    assert hours.unit == "h"
    assert hours.method == "(300000 − 0) USD ÷ (21.5 − 1.092) USD/h"


def test_a_machine_whose_life_ends_before_it_has_paid_never_pays() -> None:
    hours = owning_break_even_hours(owned(life_years=1, hours_per_year=2000), rent(60))
    assert hours.value is None
    assert "its life has 2,000" in (hours.reason or "")


def test_a_rent_that_is_not_known_has_no_break_even() -> None:
    hours = owning_break_even_hours(owned(), unavailable("USD/h", "sold as capacity blocks"))
    assert (hours.value, hours.reason) == (None, "sold as capacity blocks")


def test_currencies_do_not_mix() -> None:
    with pytest.raises(InputError, match="EUR/h"):
        owning_break_even_hours(owned(), rent(21.5, "EUR/h"))


@pytest.mark.parametrize(
    "changes",
    [
        {"capital": 0},
        {"life_years": 0},
        {"pue": 0.9},
        {"hours_per_year": 0},
        {"hours_per_year": 9000},
        {"residual": 400_000},
        {"electricity_per_kwh": float("nan")},
        {"currency": "dollars"},
    ],
)
def test_terms_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        owned(**changes)
