"""An old price says that it is old."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from price_rows import price_row

from trueup.catalog import STALE_AFTER_DAYS, published_prices, staleness
from trueup.schema import Price

SEEN = date(2026, 3, 1)


@pytest.mark.parametrize("days", [-400, 0, 1, STALE_AFTER_DAYS])
def test_a_price_seen_lately_or_later_says_nothing(days: int) -> None:
    assert staleness(price_row(), SEEN + timedelta(days=days)) is None


@pytest.mark.parametrize("days", [STALE_AFTER_DAYS + 1, 1000])
def test_an_older_price_says_how_old_it_is(days: int) -> None:
    said = staleness(price_row(), SEEN + timedelta(days=days))
    assert said is not None
    assert f"as of 2026-03-01, {days} days before" in said


def test_a_month_is_as_old_as_its_first_day() -> None:
    assert staleness(price_row(as_of="2026-03"), SEEN + timedelta(days=91)) is not None


def test_a_price_that_states_its_end_is_not_stale_before_it() -> None:
    row = price_row(valid_from="2020-01", valid_to="2026-09")
    assert staleness(row, date(2026, 9, 30)) is None
    assert staleness(row, date(2026, 10, 1)) is not None


def test_a_recipes_price_is_held_to_the_same() -> None:
    late = SEEN + timedelta(days=91)
    assert staleness(Price(usd_per_hour=1, source="x", as_of="2026-03-01"), late) is not None
    assert staleness(Price(usd_per_hour=1, source="x", as_of="last summer"), late) is None
    assert staleness(Price(usd_per_hour=1, source="x"), late) is None


def test_the_demos_example_price_is_stale_by_now() -> None:
    (row,) = (row for row in published_prices() if row.instance == "m7g.large")
    assert staleness(row, date(2026, 11, 29)) is not None
