"""What an hour on a machine of one's own costs, and after how many hours owning is cheaper than renting."""

from __future__ import annotations

from typing import Literal

from trueup.schema import InputError, Measurement, OwnedTerms, unavailable
from trueup.schema.bounds import HOURS_PER_YEAR


def capital_per_hour(terms: OwnedTerms) -> Measurement:
    """(capital − residual) ÷ the hours used in its life, in currency/h."""
    hours = terms.life_years * terms.hours_per_year
    method = (
        f"({terms.capital:.7g} − {terms.residual:.7g}) {terms.currency} ÷ "
        f"({terms.life_years:g} years × {terms.hours_per_year:g} h)"
    )
    return _money(terms, (terms.capital - terms.residual) / hours, method)


def running_per_hour(terms: OwnedTerms) -> Measurement:
    """Electricity x PUE, hosting and staff of a used hour, in currency/h; idle hours' electricity is shared
    by the used ones."""
    per_kw_h = terms.pue * terms.electricity_per_kwh
    idle_h = (HOURS_PER_YEAR - terms.hours_per_year) / terms.hours_per_year  # for each used one
    electricity = terms.power_w / 1000 * per_kw_h
    idle = terms.idle_power_w / 1000 * per_kw_h * idle_h
    people = (terms.hosting_per_year + terms.staff_per_year) / terms.hours_per_year
    tariff = f"PUE {terms.pue:g} × {terms.electricity_per_kwh:.6g} {terms.currency}/kWh"
    method = f"{terms.power_w / 1000:.6g} kW × {tariff}"
    if terms.idle_power_w:
        method += f" + {terms.idle_power_w / 1000:.6g} kW × {idle_h:.4g} idle h × {tariff}"
    if people:
        method += (
            f" + ({terms.hosting_per_year:.7g} hosting + {terms.staff_per_year:.7g} staff) "
            f"{terms.currency} ÷ {terms.hours_per_year:g} h"
        )
    return _money(terms, electricity + idle + people, method)


def owning_break_even_hours(owned: OwnedTerms, rented_per_hour: Measurement) -> Measurement:
    """Used hours after which owning has cost no more than renting: (capital − residual) ÷ (rented − running).

    `rented_per_hour` is in the owned machine's currency/h, else InputError. Unavailable where an hour of
    one's own runs no cheaper than a rented one, where its life ends before, and where the rent is not known.
    """
    unit = f"{owned.currency}/h"
    if rented_per_hour.unit != unit:
        raise InputError(
            f"a machine paid in {owned.currency} and a rent in {rented_per_hour.unit} cannot be set against "
            "each other: give both in one currency"
        )
    running = running_per_hour(owned)
    assert running.value is not None
    if rented_per_hour.value is None:
        return unavailable("h", rented_per_hour.reason or "there is no rent to compare with", scope="node")
    saved = rented_per_hour.value - running.value
    method = (
        f"({owned.capital:.7g} − {owned.residual:.7g}) {owned.currency} ÷ "
        f"({rented_per_hour.value:.7g} − {running.value:.7g}) {unit}"
    )
    if saved <= 0:
        reason = (
            f"never: an hour of one's own runs at {running.value:.6g} {unit}, no cheaper than the rented "
            f"{rented_per_hour.value:.6g}"
        )
        return unavailable("h", reason, method=method, scope="node")
    hours = (owned.capital - owned.residual) / saved
    lived = owned.life_years * owned.hours_per_year
    if hours > lived:
        reason = f"never: it would take {hours:,.0f} used hours, and its life has {lived:,.0f}"
        return unavailable("h", reason, method=method, scope="node")
    kind: Literal["derived", "estimated"] = (
        "estimated" if "estimated" in (owned.kind, rented_per_hour.kind) else "derived"
    )
    return Measurement(value=hours, unit="h", kind=kind, method=method, scope="node")


def _money(terms: OwnedTerms, value: float, method: str) -> Measurement:
    return Measurement(
        value=value,
        unit=f"{terms.currency}/h",
        kind="estimated" if terms.kind == "estimated" else "derived",
        method=method,
        scope="node",
    )
