"""What a run costs under each price model: worked values, scaling, and what is not known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trueup.analysis.price_models import cost_of, one_currency, terms_from_price
from trueup.schema import (
    CapacityBlockTerms,
    HourlyPrice,
    InputError,
    Measurement,
    OnDemandTerms,
    OwnedTerms,
    Price,
    PricingTerms,
    ReservedTerms,
    SpotPoint,
    SpotTerms,
)
from trueup.schema.bounds import HOURS, MONEY, PER_HOUR, PURCHASE, SECONDS, SHARE, USED_HOURS, YEARS

START = datetime(2026, 11, 2, tzinfo=UTC)
amounts = st.floats(1e-3, 1e3)
walls = st.floats(1.0, 1e7)
utilisations = st.floats(0.01, 1.0)


def hourly(amount: float | None = 21.5, **changes: object) -> HourlyPrice:
    fields: dict[str, object] = {
        "amount": amount,
        "currency": "USD",
        "source": "a list",
        "as_of": "2026-11-01",
    }
    return HourlyPrice.model_validate(fields | changes)


def on_demand(amount: float = 21.5, minimum_s: float = 60.0) -> OnDemandTerms:
    return OnDemandTerms(currency="USD", price=hourly(amount), minimum_s=minimum_s)


def reserved(amount: float = 8.197, utilisation: float = 1.0, upfront: float = 0.0) -> ReservedTerms:
    return ReservedTerms(
        name="reserved-3y", currency="USD", price=hourly(amount), utilisation=utilisation, upfront=upfront
    )


def owned(capital: float, life_years: float, hours_per_year: float = 8760) -> OwnedTerms:
    return OwnedTerms(
        currency="USD",
        capital=capital,
        life_years=life_years,
        hours_per_year=hours_per_year,
        power_w=1000,
        pue=1.2,
        electricity_per_kwh=0.1,
        source="a quote",
    )


def every_model(amount: float) -> list[PricingTerms]:
    return [
        on_demand(amount),
        reserved(amount, utilisation=0.4),
        CapacityBlockTerms(currency="USD", price=hourly(amount), block_hours=24),
        CapacityBlockTerms(currency="USD", price=hourly(amount), utilisation=0.7),
        CapacityBlockTerms(currency="USD", price=hourly(amount)),
        SpotTerms(currency="USD", series=(SpotPoint(at=START, amount=amount),), source="history"),
    ]


@given(amount=amounts, wall_s=walls)
def test_twice_the_price_is_twice_the_cost(amount: float, wall_s: float) -> None:
    for one, two in zip(every_model(amount), every_model(2 * amount), strict=True):
        once, twice = cost_of(one, wall_s, started=START), cost_of(two, wall_s, started=START)
        assert twice.total.value == pytest.approx(2 * (once.total.value or 0), rel=1e-12)
        assert twice.per_hour.value == pytest.approx(2 * (once.per_hour.value or 0), rel=1e-12)


@given(amount=amounts, wall_s=walls)
def test_an_hour_costs_the_total_over_the_runs_hours(amount: float, wall_s: float) -> None:
    for terms in every_model(amount):
        cost = cost_of(terms, wall_s, started=START)
        assert (cost.per_hour.value or 0) * wall_s / 3600 == pytest.approx(cost.total.value, rel=1e-12)
        assert (cost.per_hour.unit, cost.total.unit, cost.currency) == ("USD/h", "USD", "USD")
        assert cost.model == terms.name


@given(wall_s=st.floats(60.0, 1e7))
def test_on_demand_is_by_the_second(wall_s: float) -> None:
    assert cost_of(on_demand(3600.0), wall_s).total.value == pytest.approx(wall_s)


@pytest.mark.parametrize("wall_s", [0.0, 1.0, 59.9])
def test_on_demand_has_a_minimum(wall_s: float) -> None:
    cost = cost_of(on_demand(3600.0), wall_s)
    assert cost.total.value == pytest.approx(60.0)
    assert cost.notes == ("billed for the provider's minimum of 60 s",)
    assert cost.per_hour.value is not None


def test_the_method_shows_the_arithmetic_and_whose_price_it_is() -> None:
    cost = cost_of(on_demand(), 7200)
    assert cost.total.value == 43.0
    assert cost.total.method == "21.5 USD/h (quoted, a list) × 2 h"
    assert (cost.total.kind, cost.total.scope) == ("derived", "node")
    estimated = OnDemandTerms(currency="USD", price=hourly(kind="estimated"))
    assert cost_of(estimated, 7200).total.kind == "estimated"


@given(amount=amounts, wall_s=walls)
def test_a_reservation_that_is_always_used_costs_its_hourly_price(amount: float, wall_s: float) -> None:
    assert cost_of(reserved(amount), wall_s).per_hour.value == pytest.approx(amount)


@given(amount=amounts, wall_s=walls, utilisation=utilisations)
def test_idle_reserved_hours_are_paid_for(amount: float, wall_s: float, utilisation: float) -> None:
    """What all the used hours of the term cost is what the term costs."""
    upfront = 1000.0
    cost = cost_of(reserved(amount, utilisation, upfront), wall_s)
    term_h = 3 * 8760
    assert (cost.per_hour.value or 0) * utilisation * term_h == pytest.approx(amount * term_h + upfront)


def test_the_utilisation_is_told() -> None:
    assert "25.0% of the reserved hours stand idle" in cost_of(reserved(utilisation=0.75), 60).notes[0]
    assert "the least it can be" in cost_of(reserved(), 60).notes[0]


def test_blocks_are_bought_whole() -> None:
    terms = CapacityBlockTerms(currency="USD", price=hourly(10.0), block_hours=24)
    for wall_h, blocks in [(1, 1), (24, 1), (24.5, 2)]:
        cost = cost_of(terms, wall_h * 3600)
        assert cost.total.value == pytest.approx(240.0 * blocks)
        assert f"leaves {24 * blocks - wall_h:.3g} h idle" in cost.notes[0]


def test_a_block_of_unknown_length_says_that_idle_hours_are_not_counted() -> None:
    cost = cost_of(CapacityBlockTerms(currency="USD", price=hourly(10.0)), 3600)
    assert cost.total.value == 10.0
    assert "not known" in cost.notes[0]


def test_a_block_shared_by_runs_costs_each_its_part_of_the_idle_hours() -> None:
    cost = cost_of(CapacityBlockTerms(currency="USD", price=hourly(10.0), utilisation=0.8), 3600)
    assert cost.total.value == pytest.approx(12.5)


@pytest.mark.parametrize("model", [0, 1, 2, 3, 4])
def test_a_missing_price_is_missing_with_its_reason(model: int) -> None:
    there_is_none = hourly(None, kind="unavailable", reason="sold as capacity blocks")
    terms = every_model(1.0)[model].model_copy(update={"price": there_is_none})
    cost = cost_of(terms, 3600)
    for one in (cost.total, cost.per_hour):
        assert (one.value, one.kind, one.reason) == (None, "unavailable", "sold as capacity blocks")


def test_a_stale_price_says_so_wherever_it_is_used() -> None:
    fresh, stale = date(2027, 1, 30), date(2027, 1, 31)
    for terms in every_model(1.0)[:5]:
        assert not any("may hold no more" in note for note in cost_of(terms, 3600, on=fresh).notes)
        assert "as of 2026-11-01, 91 days before 2027-01-31" in cost_of(terms, 3600, on=stale).notes[-1]
    late = datetime(2027, 3, 1, tzinfo=UTC)
    assert "120 days before" in cost_of(on_demand(), 3600, started=late).notes[-1]


@pytest.mark.parametrize("wall_s", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(wall_s: float) -> None:
    with pytest.raises(InputError, match="cannot be priced"):
        cost_of(on_demand(), wall_s)


@pytest.mark.parametrize(
    "make",
    [
        lambda: reserved(1e300),
        lambda: reserved(utilisation=1e-300),
        lambda: on_demand(minimum_s=1e308),
        lambda: CapacityBlockTerms(currency="USD", price=hourly(), block_hours=1e-320),
        lambda: CapacityBlockTerms(currency="USD", price=hourly(), utilisation=1e-320),
        lambda: owned(1e308, life_years=4),
        lambda: owned(1.0, life_years=1e-300),
        lambda: owned(1.0, life_years=4, hours_per_year=1e-300),
        lambda: SpotPoint(at=START, amount=1e308),
    ],
)
def test_terms_far_beyond_what_is_paid_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValidationError, match="expected a number from"):
        make()


@pytest.mark.parametrize("wall_s", [SECONDS.least, 1.0, SECONDS.most])
@pytest.mark.parametrize("most", [False, True])
def test_what_the_bounds_let_in_costs_a_number(wall_s: float, most: bool) -> None:
    hour = PER_HOUR.most if most else PER_HOUR.least
    share = SHARE.least if most else 1.0
    hours = HOURS.most if most else HOURS.least
    extremes: list[PricingTerms] = [
        on_demand(hour, minimum_s=SECONDS.most if most else 0.0),
        reserved(hour, share, upfront=MONEY.most if most else 0.0),
        CapacityBlockTerms(currency="USD", price=hourly(hour), block_hours=hours),
        CapacityBlockTerms(currency="USD", price=hourly(hour), utilisation=share),
        owned(PURCHASE.most if most else PURCHASE.least, YEARS.least, USED_HOURS.least),
        SpotTerms(currency="USD", series=(SpotPoint(at=START, amount=hour),), source="history"),
    ]
    for terms in extremes:
        assert cost_of(terms, wall_s).total.value is not None


def test_a_spot_cost_beyond_a_number_is_refused() -> None:
    often = Measurement(value=1e-3, unit="1/h", kind="quoted")
    terms = SpotTerms(
        currency="USD",
        series=(SpotPoint(at=START, amount=1e9),),
        source="history",
        interruptions_per_hour=often,
    )
    with pytest.raises(InputError, match="more than a number can hold"):
        cost_of(terms, 709.7e3 * 3600)


def test_a_start_without_a_zone_is_refused() -> None:
    with pytest.raises(InputError, match="time zone"):
        cost_of(on_demand(), 60, started=datetime(2026, 11, 2))


@pytest.mark.parametrize("amount", [0.0, -1.0, float("nan"), float("inf")])
def test_an_amount_that_is_no_price_is_refused(amount: float) -> None:
    with pytest.raises(ValidationError):
        hourly(amount)


def test_currencies_do_not_mix() -> None:
    euro = OnDemandTerms(currency="EUR", price=hourly(currency="EUR"))
    assert one_currency([cost_of(on_demand(), 60), on_demand()]) == "USD"
    with pytest.raises(InputError, match="EUR and USD"):
        one_currency([cost_of(on_demand(), 60), cost_of(euro, 60)])
    with pytest.raises(ValidationError, match="terms in EUR with a price in USD"):
        OnDemandTerms(currency="EUR", price=hourly())


def test_a_recipes_price_is_on_demand_in_dollars() -> None:
    terms = terms_from_price(Price(usd_per_hour=3.6, source="our contract", as_of="2026-06-01"))
    cost = cost_of(terms, 100)
    assert (cost.model, cost.currency, cost.total.value) == ("on-demand", "USD", pytest.approx(0.1))
    assert "our contract" in cost.total.method
    assert terms.price.as_of == "2026-06-01"


def test_a_recipes_date_in_words_is_kept_with_the_source() -> None:
    terms = terms_from_price(Price(usd_per_hour=3.6, source="a list", as_of="last June"))
    assert (terms.price.source, terms.price.as_of) == ("a list (last June)", None)


@pytest.mark.parametrize(
    ("tokens_per_s", "usd_per_hour", "per_million"),
    [(12_275, 21.50, 0.487), (12_275, 8.197, 0.185), (8 * 12_273, 55.04, 0.156)],
)
def test_published_throughputs_at_published_prices(
    tokens_per_s: float, usd_per_hour: float, per_million: float
) -> None:
    seconds = 1e6 / tokens_per_s
    cost = cost_of(on_demand(usd_per_hour, minimum_s=0), seconds)
    assert cost.total.value == pytest.approx(per_million, abs=5e-4)
