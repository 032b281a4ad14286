"""The prices that come with trueup: `prices.json` beside this file, each with its source and date."""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any, Literal

from trueup.schema import InputError, Price, PriceRow

from .lookup import instance, read_data
from .price_book import PriceBook


@cache
def published_prices() -> tuple[PriceRow, ...]:
    """Every price row of the catalog."""
    return tuple(_row(fields) for fields in read_data("prices.json")["prices"])


def instance_price(name: str, *, on: date | None = None, book: PriceBook | None = None) -> Price:
    """The on-demand price of the whole instance on a day, by default the newest, of the catalog alone.

    InputError if it is unknown, has none, with the reason, or is not in dollars.
    """
    instead = "give price.usd_per_hour and price.source in the recipe"
    try:
        row = (book or PriceBook(published=published_prices())).find(name, "on_demand", on=on)
    except InputError as error:  # a recipe's instance has no region that could be said
        raise InputError(f"{error}; or {instead}") from None
    if row.amount_per_hour is None:
        why = f"{row.reason} ({row.source}, {row.as_of})"
        raise InputError(f"there is no on-demand price for {row.instance}: {why}; {instead}")
    if row.currency != "USD":
        raise InputError(
            f"the on-demand price of {row.instance} is in {row.currency}, and a recipe's is in dollars: "
            f"{instead}"
        )
    kind: Literal["quoted", "measured", "estimated"] = row.kind if row.kind != "unavailable" else "quoted"
    source = f"{row.instance} on-demand, {row.region}: {row.source}"
    return Price(usd_per_hour=row.amount_per_hour, source=source, kind=kind, as_of=row.as_of)


def _row(fields: dict[str, Any]) -> PriceRow:
    """Some sources have the price of one chip's hour."""
    fields = dict(fields)
    per_chip = fields.pop("amount_per_chip_hour", None)
    if per_chip is not None:
        chips = instance(fields["instance"]).chip_count
        fields["amount_per_hour"] = per_chip * chips
        fields["note"] = f"{per_chip:g} {fields['currency']} an hour and chip, times {chips}"
    return PriceRow.model_validate(fields)
