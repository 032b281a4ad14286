"""The prices this home knows: read here, at the edge, and passed down."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from trueup.home import find_home
from trueup.schema import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.catalog import PriceBook
    from trueup.schema.price_row import PriceEntry


def open_price_book() -> PriceBook:
    """The catalog's prices and this home's own."""
    from trueup.store.price_file import PriceFile

    return book_of(PriceFile(find_home().path).entries())


def book_of(entries: Sequence[PriceEntry]) -> PriceBook:
    """The catalog's prices and these."""
    from trueup.catalog import PriceBook, published_prices
    from trueup.store.price_file import standing

    return PriceBook(
        own=standing(entries, "own"),
        collected=standing(entries, "collected"),
        published=published_prices(),
    )


def today() -> date:
    return datetime.now(UTC).date()


def date_given(text: str | None, option: str) -> date | None:
    """A date of the command line, not after today. InputError for anything else."""
    if text is None:
        return None
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise InputError(f"{option} {text}: a date is written 2026-11-29") from None
    if found > today():
        raise InputError(f"{option} {text} lies in the future: nobody knows a price of then")
    return found
