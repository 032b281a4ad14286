"""Prices age: one that was last seen long ago may hold no more."""

from __future__ import annotations

from datetime import date
from typing import Protocol

from trueup.schema.price_row import period

STALE_AFTER_DAYS = 90


class Dated(Protocol):
    @property
    def as_of(self) -> str | None: ...


def staleness(price: Dated, on: date) -> str | None:
    """What to say of a price used on a date more than 90 days after it was last seen; None where there is
    nothing to say: it is newer, its date is not known, or it is stated to have held on that date."""
    if price.as_of is None:
        return None
    try:
        seen = period(price.as_of)[0].date()
    except ValueError:  # a recipe may say "last summer"
        return None
    valid_to: str | None = getattr(price, "valid_to", None)
    if valid_to is not None and on < period(valid_to)[1].date():
        return None
    age = (on - seen).days
    if age <= STALE_AFTER_DAYS:
        return None
    return (
        f"the price is as of {price.as_of}, {age} days before {on}; one older than {STALE_AFTER_DAYS} days "
        "may hold no more"
    )
