"""What a run's seconds cost under each price model. Pure functions of terms; nothing is converted between
currencies.

Of every model, the cost of an hour is the total over the hours of the run, so that one follows from the
other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime
from typing import Literal

from pydantic import Field, ValidationError

from trueup.catalog import staleness
from trueup.schema import (
    CapacityBlockTerms,
    Frozen,
    HourlyPrice,
    InputError,
    Measurement,
    OnDemandTerms,
    OwnedTerms,
    Price,
    PricingTerms,
    ReservedTerms,
    SpotTerms,
    unavailable,
)
from trueup.schema.bounds import HOURS_PER_YEAR
from trueup.schema.price_row import period

from .owning import capital_per_hour, running_per_hour
from .spot import SpotCost, spot_cost


class CostUnderModel(Frozen):
    """A run under one price model. `total` in the currency, `per_hour` in currency/h; `parts` are what the
    total rests on, by name; `notes` what a reader must know beside it."""

    model: str
    currency: str
    per_hour: Measurement
    total: Measurement
    notes: tuple[str, ...] = ()
    parts: dict[str, Measurement] = Field(default_factory=dict)


def cost_of(
    model: PricingTerms, wall_s: float, *, started: datetime | None = None, on: date | None = None
) -> CostUnderModel:
    """What `wall_s` seconds of the whole instance, or machine, cost under these terms.

    `started` places the run in a spot series. A price too old on the date `on` (by default that of `started`)
    says so in the notes. InputError for a time below zero or not finite, or a `started` without a zone.
    """
    if not (math.isfinite(wall_s) and wall_s >= 0):
        raise InputError(f"a run of {wall_s} s cannot be priced: its time is finite and not below zero")
    if started is not None and started.tzinfo is None:
        raise InputError(f"when the run started ({started}) needs a time zone to be placed in a price series")
    try:
        cost = _under(model, wall_s, started)
    except (ArithmeticError, ValidationError):  # the terms were valid: only a result can be beyond a number
        raise InputError(
            f"what {wall_s:g} s cost under {model.name} is more than a number can hold: one of its terms is "
            "far too large or too small"
        ) from None
    on = on or (started.date() if started is not None else None)
    old = staleness(model if isinstance(model, SpotTerms | OwnedTerms) else model.price, on) if on else None
    return cost.model_copy(update={"notes": (*cost.notes, old)}) if old else cost


def _under(model: PricingTerms, wall_s: float, started: datetime | None) -> CostUnderModel:
    if isinstance(model, OnDemandTerms):
        return _on_demand(model, wall_s)
    if isinstance(model, ReservedTerms):
        return _reserved(model, wall_s)
    if isinstance(model, CapacityBlockTerms):
        return _capacity_block(model, wall_s)
    if isinstance(model, SpotTerms):
        return _spot(spot_cost(model, wall_s, started), wall_s)
    return _owned(model, wall_s)


def one_currency(costs: Iterable[CostUnderModel | PricingTerms]) -> str:
    """The currency that all of these are in. InputError where they differ: no rate of exchange is assumed."""
    found = sorted({one.currency for one in costs})
    if len(found) != 1:
        raise InputError(
            f"amounts in {' and '.join(found) or 'no currency'} cannot be set against each other: give all "
            "prices in one currency"
        )
    return found[0]


def terms_from_price(price: Price) -> OnDemandTerms:
    """A recipe's price, or one given on the command line: dollars by the second, without a minimum."""
    source, as_of = price.source, price.as_of
    if as_of is not None:
        try:
            period(as_of)
        except ValueError:  # free text in a recipe
            source, as_of = f"{source} ({as_of})", None
    hourly = HourlyPrice(
        amount=price.usd_per_hour, currency="USD", kind=price.kind, source=source or "not said", as_of=as_of
    )
    return OnDemandTerms(currency="USD", price=hourly)


def _on_demand(terms: OnDemandTerms, wall_s: float) -> CostUnderModel:
    billed_s = max(wall_s, terms.minimum_s)
    notes = [f"billed for the provider's minimum of {terms.minimum_s:g} s"] if billed_s > wall_s else []
    return _cost(terms, wall_s, terms.price.amount, billed_s / 3600, _shown(terms.price), notes)


def _reserved(terms: ReservedTerms, wall_s: float) -> CostUnderModel:
    hours = terms.years * HOURS_PER_YEAR
    amount = terms.price.amount
    rate = None if amount is None else (amount + terms.upfront / hours) / terms.utilisation
    upfront = f" + {terms.upfront:.7g} {terms.currency} upfront ÷ {hours:.6g} h" if terms.upfront else ""
    method = f"({_shown(terms.price)}{upfront}) ÷ {terms.utilisation:.4g} of the reserved hours used"
    if terms.utilisation == 1:
        notes = ["every reserved hour is taken to be used: this is the least it can be"]
    else:
        notes = [f"{1 - terms.utilisation:.1%} of the reserved hours stand idle and are paid for as well"]
    return _cost(terms, wall_s, rate, wall_s / 3600, method, notes)


def _capacity_block(terms: CapacityBlockTerms, wall_s: float) -> CostUnderModel:
    amount, hours, share = terms.price.amount, terms.block_hours, terms.utilisation
    wall_h, notes = wall_s / 3600, []
    if share is not None:
        rate = None if amount is None else amount / share
        method = f"{_shown(terms.price)} ÷ {share:.4g} of the blocks' hours used"
        if share < 1:
            notes.append(f"{1 - share:.1%} of the blocks' hours stand idle and are paid for as well")
        return _cost(terms, wall_s, rate, wall_h, method, notes)
    billed_h = wall_h
    if hours is None:
        notes.append("the block's length is not known: hours of it that this run leaves idle are not counted")
    else:
        billed_h = hours * max(1, math.ceil(wall_h / hours))
        notes.append(
            f"blocks of {hours:g} h bought for this run alone, which leaves {billed_h - wall_h:.3g} h idle"
        )
    return _cost(terms, wall_s, amount, billed_h, _shown(terms.price), notes)


def _owned(terms: OwnedTerms, wall_s: float) -> CostUnderModel:
    capital, running = capital_per_hour(terms), running_per_hour(terms)
    assert capital.value is not None
    assert running.value is not None
    per_hour = capital.value + running.value
    method = f"capital {capital.method}, and running: {running.method} ({terms.kind}, {terms.source})"
    kind = _kind(terms.kind)
    return CostUnderModel(
        model=terms.name,
        currency=terms.currency,
        per_hour=_money(per_hour, f"{terms.currency}/h", kind, method),
        total=_money(per_hour * wall_s / 3600, terms.currency, kind, f"({method}) × {wall_s:.6g} s ÷ 3600"),
        notes=(f"holds where the machine is used {terms.hours_per_year:g} h a year",),
        parts={"capital_per_hour": capital, "running_per_hour": running},
    )


def _spot(cost: SpotCost, wall_s: float) -> CostUnderModel:
    terms, total = cost.terms, cost.total
    if total.value is None or wall_s <= 0:
        per_hour = (
            cost.hourly if total.value is not None else unavailable(f"{terms.currency}/h", total.reason or "")
        )
    else:
        hours = wall_s / 3600
        ci = None if total.ci is None else (total.ci[0] / hours, total.ci[1] / hours)
        per_hour = total.model_copy(
            update={
                "value": total.value / hours,
                "unit": f"{terms.currency}/h",
                "ci": ci,
                "method": f"({total.method}) ÷ {hours:.6g} h of the run",
            }
        )
    return CostUnderModel(
        model=terms.name,
        currency=terms.currency,
        per_hour=per_hour,
        total=total,
        notes=cost.notes,
        parts=cost.parts,
    )


def _cost(
    terms: OnDemandTerms | ReservedTerms | CapacityBlockTerms,
    wall_s: float,
    rate: float | None,
    billed_h: float,
    method: str,
    notes: list[str],
) -> CostUnderModel:
    """`billed_h` hours at `rate`, which `method` explains; an hour of the run costs that over its own
    hours."""
    unit, wall_h = f"{terms.currency}/h", wall_s / 3600
    if rate is None:
        reason = terms.price.reason or "there is no price"
        per_hour, total = (
            unavailable(one, reason, method=terms.price.source, scope="node")
            for one in (unit, terms.currency)
        )
        return CostUnderModel(model=terms.name, currency=terms.currency, per_hour=per_hour, total=total)
    kind, of_total = _kind(terms.price.kind), f"{method} × {billed_h:.6g} h"
    as_listed = billed_h == wall_h or wall_h == 0
    return CostUnderModel(
        model=terms.name,
        currency=terms.currency,
        per_hour=_money(rate, unit, kind, method)
        if as_listed
        else _money(rate * billed_h / wall_h, unit, kind, f"{of_total} ÷ {wall_h:.6g} h of the run"),
        total=_money(rate * billed_h, terms.currency, kind, of_total),
        notes=tuple(notes),
    )


def _money(value: float, unit: str, kind: Literal["derived", "estimated"], method: str) -> Measurement:
    return Measurement(value=value, unit=unit, kind=kind, method=method, scope="node")


def _kind(of: str) -> Literal["derived", "estimated"]:
    return "estimated" if of == "estimated" else "derived"


def _shown(price: HourlyPrice) -> str:
    amount = "no price in" if price.amount is None else f"{price.amount:.10g}"
    return f"{amount} {price.currency}/h ({price.kind}, {price.source})"
