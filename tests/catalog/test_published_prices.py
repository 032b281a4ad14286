"""The prices that come with trueup say what their sources say."""

from __future__ import annotations

from datetime import date

import pytest

from trueup.catalog import PriceBook, instance, instance_price, instances, published_prices
from trueup.schema import InputError

REVIEWED = date(2026, 11, 29)


def test_every_instance_has_an_on_demand_row_with_source_and_date() -> None:
    assert {row.instance for row in published_prices() if row.model == "on_demand"} == set(instances())
    for row in published_prices():
        assert row.source
        assert row.currency == "USD"
        assert (row.amount_per_hour is None) == (row.reason is not None)


def test_they_do_not_contradict_one_another() -> None:
    assert len(list(PriceBook(published=published_prices()).rows())) == len(published_prices())


def test_the_three_year_rate_of_trn1() -> None:
    row = PriceBook(published=published_prices()).find("trn1.32xlarge", "reserved-3y", on=REVIEWED)
    assert row.amount_per_hour == 8.197


def test_a_price_by_chip_is_multiplied_by_the_chips() -> None:
    row = PriceBook(published=published_prices()).find("trn2.48xlarge", "capacity-block", on=REVIEWED)
    assert row.amount_per_hour == pytest.approx(2.235 * instance("trn2.48xlarge").chip_count)
    assert row.kind == "estimated"
    assert "2.235 USD an hour and chip, times 16" in row.note


def test_a_recipes_instance_may_be_priced_by_the_home() -> None:
    (row,) = (row for row in published_prices() if row.instance == "p5.48xlarge")
    cheaper = row.model_copy(update={"amount_per_hour": 30.0, "source": "our contract"})
    book = PriceBook(own=[cheaper], published=published_prices())
    assert instance_price("p5.48xlarge", book=book).usd_per_hour == 30.0
    euro = PriceBook(own=[cheaper.model_copy(update={"currency": "EUR"})])
    with pytest.raises(InputError, match="in EUR"):
        instance_price("p5.48xlarge", book=euro)
    regions = [cheaper.model_copy(update={"region": region}) for region in ("eu-west-1", "eu-central-1")]
    with pytest.raises(InputError, match=r"say which region; or give price\.usd_per_hour"):
        instance_price("p5.48xlarge", book=PriceBook(own=regions))
