"""A price row: when it holds, and what it refuses to be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from price_rows import price_row
from pydantic import ValidationError

from trueup.schema import PriceRow
from trueup.schema.price_row import period


def instant(year: int, month: int, day: int, hour: int = 0) -> datetime:
    return datetime(year, month, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "first", "after"),
    [
        ("2026-11", instant(2026, 11, 1), instant(2026, 12, 1)),
        ("2026-12", instant(2026, 12, 1), instant(2027, 1, 1)),
        ("2024-02", instant(2024, 2, 1), instant(2024, 3, 1)),
        ("2026-11-29", instant(2026, 11, 29), instant(2026, 11, 30)),
        ("2026-11-29T12:00:00Z", instant(2026, 11, 29, 12), instant(2026, 11, 29, 12)),
        ("2026-11-29T14:00:00+02:00", instant(2026, 11, 29, 12), instant(2026, 11, 29, 12)),
        ("2026-11-29T12:00:00", instant(2026, 11, 29, 12), instant(2026, 11, 29, 12)),
    ],
)
def test_a_date_is_as_long_as_it_is_exact(text: str, first: datetime, after: datetime) -> None:
    assert period(text) == (first, after)


@given(st.dates())
def test_a_month_holds_its_days(day: object) -> None:
    month = str(day)[:7]
    if month.startswith("9999-12"):
        return
    first, after = period(month)
    begins, ends = period(str(day))
    assert first <= begins < ends <= after
    assert after - first <= timedelta(days=31)


@pytest.mark.parametrize(
    "text", ["", "20260601", "2026-W10-1", "June 2026", "2026-13", "2026-02-30", "26-1-1", "9999-12-31T24:01"]
)
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is no date"):
        price_row(as_of=text)


@pytest.mark.parametrize("field", ["instance", "region", "zone", "source"])
def test_a_blank_is_no_name(field: str) -> None:
    with pytest.raises(ValidationError, match="at least 1 character"):
        price_row(**{field: " "})


def test_a_row_holds_from_where_it_says_or_from_when_it_was_seen() -> None:
    assert price_row().start == instant(2026, 3, 1)
    assert price_row(valid_from="2026-01").start == instant(2026, 1, 1)
    assert price_row(valid_to="2026-05").start is None
    assert price_row(valid_to="2026-05").end == instant(2026, 6, 1)
    assert price_row(valid_to="2026-05-03").end == instant(2026, 5, 4)
    assert price_row().end is None


@pytest.mark.parametrize("amount", [0.0, -3.0, float("nan"), float("inf")])
def test_an_amount_that_is_no_price_is_refused(amount: float) -> None:
    with pytest.raises(ValidationError, match="amount_per_hour"):
        price_row(amount)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "unavailable"}, "never both"),
        ({"amount_per_hour": None}, "never neither"),
        ({"amount_per_hour": None, "kind": "unavailable"}, "carries its reason"),
        ({"currency": "dollars"}, "currency"),
        ({"currency": "usd"}, "currency"),
        ({"valid_from": "2026-05-02", "valid_to": "2026-05-01"}, "before it begins"),
        ({"model": "preemptible"}, "model"),
        ({"minimum_billed_s": -1}, "minimum_billed_s"),
        ({"source": ""}, "source"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        price_row(**changes)


def test_the_currency_has_no_default() -> None:
    assert PriceRow.model_fields["currency"].is_required()


def test_what_price_models_need_names_its_place_and_source() -> None:
    price = price_row(zone="us-east-1a", valid_to="2026-06").price
    assert price.source == "trn1.32xlarge on_demand, us-east-1a: a list"
    assert (price.amount, price.currency, price.as_of, price.valid_to) == (
        21.5,
        "USD",
        "2026-03-01",
        "2026-06",
    )
    missing = price_row(None).price
    assert (missing.amount, missing.reason) == (None, "not listed")
