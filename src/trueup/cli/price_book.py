"""The prices this home knows: read here, at the edge, and passed down."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from trueup.home import find_home
from trueup.schema import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.catalog import PriceBook
    from trueup.recipe import Recipe
    from trueup.schema import Price
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


def price_of(recipe: Recipe) -> Price | None:
    """The recipe's own price, else today's of its instance, else none."""
    from trueup.schema import Price

    if recipe.price is not None:
        return Price(**recipe.price.model_dump(exclude={"usd_per_kwh"}))
    if recipe.platform.instance is not None:
        return price_of_instance(recipe.platform.instance)
    return None


def price_of_instance(name: str) -> Price:
    """Today's on-demand price. InputError where none is known, with the reason."""
    from trueup.catalog import instance_price

    return instance_price(name, on=today(), book=open_price_book())


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
