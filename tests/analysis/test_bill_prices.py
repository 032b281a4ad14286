"""A run under several price models: asked for, looked up, computed; a study is the sum of its runs."""

from __future__ import annotations

from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_records import arbitrary_records, make_record

from trueup.analysis.asked_prices import as_price, asked_price, place_of, price_request
from trueup.analysis.bill import OneOff, make_bill
from trueup.analysis.side_by_side import AskedPrice, ModelBill, study_under_models, under_models
from trueup.catalog import PriceBook, published_prices
from trueup.schema import (
    CapacityBlockTerms,
    HourlyPrice,
    InputError,
    OnDemandTerms,
    PriceRow,
    ReservedTerms,
    RunRecord,
    SpotTerms,
)

EMPTY = PriceBook()
CATALOG = PriceBook(published=published_prices())


def on(
    instance: str | None, *, region: str | None = None, started_at: str = "2026-11-29T10:00:00Z"
) -> RunRecord:
    told = {"instanceType": instance, "region": region} if region else {}
    header = {"recipe": {"platform": {"instance": instance}}, "started_at": started_at}
    return make_record(header={**header, "environment": {"instance": told}})


def asked(text: str, record: RunRecord | None = None, book: PriceBook = EMPTY) -> AskedPrice:
    return asked_price(price_request(text), record or make_record(), book)


def rows_of(record: RunRecord, *texts: str, one_off: OneOff | None = None) -> tuple[ModelBill, ...]:
    prices = [asked(text, record) for text in texts]
    return under_models(make_bill(record, one_off=one_off), record.header, prices, one_off)


@settings(max_examples=60)
@given(
    arbitrary_records(),
    st.sampled_from(["on-demand={}", "reserved-3y={},utilisation=0.5", "capacity-block={}", "spot={}"]),
    st.floats(1e-3, 1e3),
)
def test_twice_the_price_is_twice_the_total(record: RunRecord, model: str, amount: float) -> None:
    one, two = rows_of(record, model.format(amount), model.format(2 * amount))
    assert one.total.value is not None
    assert two.total.value == pytest.approx(2 * one.total.value, rel=1e-9, abs=1e-300)


@settings(max_examples=40)
@given(st.lists(arbitrary_records(), min_size=1, max_size=5), st.floats(1e-3, 1e3))
def test_the_runs_add_up_to_the_study_under_every_price(records: list[RunRecord], amount: float) -> None:
    rows = {str(n): rows_of(one, f"on-demand={amount}", f"spot={amount}") for n, one in enumerate(records)}
    for n, together in enumerate(study_under_models(rows, useful_tokens=1.0)):
        assert together.total.value == fsum(of_run[n].total.value or 0.0 for of_run in rows.values())


def test_a_price_given_for_the_whole_instance_is_the_bills_own() -> None:
    record = make_record()
    (row,) = rows_of(record, "on-demand=0.0816")
    assert row.total.value == pytest.approx(make_bill(record).total_usd)


def test_a_one_off_is_in_every_total() -> None:
    once = OneOff(usd=30.0, over=3, source="debugging")
    (plain,), (row,) = (rows_of(make_record(), "on-demand=1", one_off=one) for one in (None, once))
    assert row.total.value == pytest.approx((plain.total.value or 0.0) + 10.0)
    assert "30 USD / 3 (debugging)" in row.total.method


def test_a_run_without_a_price_leaves_the_study_without_one() -> None:
    rows = {
        "a": under_models(make_bill(make_record()), make_record().header, [asked("on-demand=1")]),
        "b": under_models(make_bill(make_record()), make_record().header, [asked("on-demand")]),
    }
    (together,) = study_under_models(rows, useful_tokens=1.0)
    assert together.total.value is None
    assert "1 of 2 runs under on-demand=1 have none" in (together.total.reason or "")


def test_currencies_of_one_model_are_not_mixed() -> None:
    rows = {
        run: under_models(make_bill(make_record()), make_record().header, [asked(text)])
        for run, text in (("a", "on-demand=1"), ("b", "on-demand=1EUR"))
    }
    with pytest.raises(InputError, match="mixes EUR and USD"):
        study_under_models(rows, useful_tokens=1.0)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("on-demand=2,minimum_s=60", OnDemandTerms),
        ("on_demand=2", OnDemandTerms),
        ("reserved-1y=2,upfront=100", ReservedTerms),
        ("reserved-3y=2, utilisation=0.7", ReservedTerms),
        ("capacity-block=2,block_hours=24", CapacityBlockTerms),
        ("spot=2,interruptions_per_hour=0.05,restart_s=60", SpotTerms),
    ],
)
def test_a_price_with_an_amount_is_that_price(text: str, terms: type[Any]) -> None:
    found = asked(text)
    assert isinstance(found.terms, terms)
    assert found.label == text


def test_a_currency_follows_the_amount() -> None:
    found = asked("on-demand=2.5EUR")
    assert isinstance(found.terms, OnDemandTerms)
    assert found.terms.price.amount == 2.5
    assert found.terms.currency == "EUR"


def test_spot_terms_know_the_runs_own_saves_and_start() -> None:
    found = asked("spot=2").terms
    assert isinstance(found, SpotTerms)
    assert found.restart_s == make_record().steps[0].start_s
    assert found.interruptions_per_hour is None


def test_what_is_given_takes_the_place_of_the_runs_own() -> None:
    found = asked("spot=2,restart_s=7").terms
    assert isinstance(found, SpotTerms)
    assert found.restart_s == 7


def test_interruptions_that_were_counted_make_a_rate_with_its_interval() -> None:
    found = asked("spot=2,interruptions=3,observed_hours=240").terms
    assert isinstance(found, SpotTerms)
    rate = found.interruptions_per_hour
    assert rate is not None
    assert (rate.value, rate.kind) == (3 / 240, "measured")
    assert rate.ci == pytest.approx((0.6187 / 240, 8.7673 / 240), rel=1e-4)  # Garwood 1936, of 3
    (row,) = rows_of(make_record(), "spot=2,interruptions=3,observed_hours=240,restart_s=60")
    assert row.total.ci is not None


@pytest.mark.parametrize(
    "options",
    [
        "interruptions=3",
        "observed_hours=240",
        "interruptions=2.5,observed_hours=240",
        "interruptions=3,observed_hours=240,interruptions_per_hour=0.1",
    ],
)
def test_interruptions_without_the_hours_they_were_seen_in_are_refused(options: str) -> None:
    with pytest.raises(InputError, match="a whole number of interruptions with the observed_hours"):
        asked(f"spot=2,{options}")


@pytest.mark.parametrize(
    "options", ["interruptions=inf,observed_hours=240", "interruptions=nan", "restart_s=nan"]
)
def test_an_option_that_is_not_finite_is_refused(options: str) -> None:
    with pytest.raises(InputError, match="is a number"):
        price_request(f"spot=2,{options}")


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="utilisation is given twice"):
        price_request("reserved-1y=2,utilisation=0.5,utilisation=0.7")


def test_an_amount_that_was_left_empty_is_not_looked_up() -> None:
    with pytest.raises(InputError, match="expected an amount an hour"):
        price_request("on-demand=")


def test_interruptions_make_a_run_dearer() -> None:
    calm, stormy = rows_of(make_record(), "spot=2", "spot=2,interruptions_per_hour=3")
    assert calm.total.value is not None
    assert stormy.total.value is not None
    assert stormy.total.value > calm.total.value


@pytest.mark.parametrize(
    ("instance", "model", "per_hour"),
    [
        ("trn1.32xlarge", "on-demand", 21.50),
        ("trn1.32xlarge", "reserved-3y", 8.197),
        ("p5.48xlarge", "on-demand", 55.04),
    ],
)
def test_a_name_alone_is_looked_up(instance: str, model: str, per_hour: float) -> None:
    found = asked(model, on(instance), CATALOG).terms
    assert isinstance(found, OnDemandTerms | ReservedTerms)
    assert found.price.amount == per_hour


def test_the_day_the_run_began_decides() -> None:
    record = on("p4d.24xlarge", started_at="2025-03-01T00:00:00Z")
    found = asked("on-demand", record, CATALOG).terms
    assert isinstance(found, OnDemandTerms)
    assert found.price.amount == 32.77


def test_the_region_of_the_machine_decides() -> None:
    rows = [
        PriceRow(
            instance="p5en.48xlarge", region=region, model="on_demand", amount_per_hour=amount,
            currency="USD", as_of="2026-11-01", source="a test", kind="quoted",
        )
        for region, amount in (("us-east-1", 63.296), ("us-west-1", 79.12))
    ]  # fmt: skip
    found = asked("on-demand", on("p5en.48xlarge", region="us-west-1"), PriceBook(own=rows)).terms
    assert isinstance(found, OnDemandTerms)
    assert found.price.amount == 79.12


@pytest.mark.parametrize(
    ("instance", "model", "reason"),
    [
        (None, "on-demand", "the run's instance is not known"),
        ("trn2.48xlarge", "on-demand", "no on-demand price is listed"),
        ("trn1.32xlarge", "spot", "no spot price of trn1.32xlarge is known"),
        ("p9.large", "on-demand", "p9.large"),
    ],
)
def test_a_price_that_is_not_known_has_a_reason(instance: str | None, model: str, reason: str) -> None:
    found = asked(model, on(instance), CATALOG)
    assert found.terms is None
    assert reason in (found.reason or "")


def test_the_instance_is_the_recipes_and_else_the_machines() -> None:
    assert place_of(on("p4d.24xlarge", region="us-west-2")).region == "us-west-2"
    assert place_of(make_record()).instance is None


def test_another_machines_region_is_not_the_recipes_instances() -> None:
    environment = {"instance": {"instanceType": "m7g.large", "region": "eu-west-1"}}
    recipe = {"platform": {"instance": "p4d.24xlarge"}}
    place = place_of(make_record(header={"environment": environment, "recipe": recipe}))
    assert (place.instance, place.region) == ("p4d.24xlarge", None)


def test_an_hour_under_a_model_can_be_a_bills_price() -> None:
    price = as_price(asked("reserved-3y=2,utilisation=0.5"), make_record())
    assert price is not None
    assert price.usd_per_hour == pytest.approx(4.0)
    assert "reserved-3y" in price.source


@pytest.mark.parametrize("text", ["on-demand", "on-demand=2EUR"])
def test_what_is_not_known_or_not_in_dollars_is_no_bills_price(text: str) -> None:
    assert as_price(asked(text), make_record()) is None


def test_hourly_prices_keep_their_kind() -> None:
    price = HourlyPrice(amount=2.0, currency="USD", kind="estimated", source="a guess")
    terms = OnDemandTerms(currency="USD", price=price)
    (row,) = under_models(
        make_bill(make_record()), make_record().header, [AskedPrice(label="a guess", terms=terms)]
    )
    assert {row.total.kind, row.usd_per_million_useful_tokens.kind} == {"estimated"}
