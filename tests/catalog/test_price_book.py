"""Looking a price up: by place, by model, and by date."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from price_rows import price_row

from trueup.catalog import PriceBook, check_new, published_prices
from trueup.catalog.price_book import covers, row_model
from trueup.schema import InputError, PriceRow

MARCH, JUNE = date(2026, 3, 15), date(2026, 6, 15)


def book(*rows: PriceRow) -> PriceBook:
    return PriceBook(collected=rows)


def published() -> PriceBook:
    return PriceBook(published=published_prices())


def spot(amount: float, zone: str = "us-east-1a", **changes: object) -> PriceRow:
    return price_row(amount, model="spot", zone=zone, **changes)


def test_a_bill_made_in_march_keeps_marchs_price() -> None:
    before = book(price_row(32.77, as_of="2026-03-01"))
    after = book(price_row(32.77, as_of="2026-03-01"), price_row(21.5, as_of="2026-06-01"))
    for one in (before, after):
        assert one.find("trn1.32xlarge", "on-demand", on=MARCH).amount_per_hour == 32.77
    assert after.find("trn1.32xlarge", "on-demand", on=JUNE).amount_per_hour == 21.5
    assert after.find("trn1.32xlarge", "on-demand").amount_per_hour == 21.5


@given(
    starts=st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True),
    amounts=st.lists(st.floats(0.1, 100), min_size=12, max_size=12),
    on=st.integers(0, 1100),
    later=st.integers(1, 50),
)
def test_what_is_learnt_later_changes_no_earlier_day(
    starts: list[int], amounts: list[float], on: int, later: int
) -> None:
    first = date(2020, 1, 1)
    rows = [
        price_row(amount, as_of=str(first + timedelta(days=start)))
        for start, amount in zip(starts, amounts, strict=False)
    ]
    day = first + timedelta(days=on)
    newest = price_row(999.0, as_of=str(day + timedelta(days=later)))
    assume(newest.as_of not in {row.as_of for row in rows})
    known = [row for row in rows if date.fromisoformat(row.as_of) <= day]
    if not known:
        with pytest.raises(InputError, match=f"is known for {day}"):
            book(*rows, newest).find("trn1.32xlarge", "on_demand", on=day)
        return
    expected = max(known, key=lambda row: row.as_of)
    assert book(*rows).find("trn1.32xlarge", "on_demand", on=day) == expected
    assert book(*rows, newest).find("trn1.32xlarge", "on_demand", on=day) == expected


def test_before_the_first_and_after_the_last_nothing_is_known() -> None:
    ended = book(price_row(valid_from="2026-02-01", valid_to="2026-05-31"))
    for day in (date(2026, 1, 31), date(2026, 6, 1)):
        with pytest.raises(InputError, match=r"known for 2026.*21\.5 USD/h from 2026-02-01 to 2026-05-31"):
            ended.find("trn1.32xlarge", "on_demand", on=day)
    for day in (date(2026, 2, 1), date(2026, 5, 31)):
        assert ended.find("trn1.32xlarge", "on_demand", on=day).amount_per_hour == 21.5


def test_p4d_before_and_after_its_price_fell() -> None:
    for day, amount in [
        (date(2024, 1, 1), 32.77),
        (date(2025, 5, 31), 32.77),
        (date(2026, 11, 9), 21.957642),
    ]:
        assert published().find("p4d.24xlarge", "on_demand", on=day).amount_per_hour == amount
    with pytest.raises(
        InputError, match="known for 2025-06-15"
    ):  # it fell in that month; the day is not known
        published().find("p4d.24xlarge", "on_demand", on=date(2025, 6, 15))


def test_ones_own_price_comes_first_also_when_older() -> None:
    own, listed = price_row(11.0, as_of="2026-03-01"), price_row(21.5, as_of="2026-06-01")
    both = PriceBook(own=[own], collected=[listed], published=published_prices())
    assert both.find("trn1.32xlarge", "on_demand", on=JUNE) == own
    assert both.find("trn1.32xlarge", "on_demand", region="us-east-1", on=JUNE) == own
    assert both.find("trn1.32xlarge", "on_demand", region="us-west-2").amount_per_hour == 21.5
    ended = PriceBook(own=[price_row(11.0, valid_to="2026-05")], collected=[listed])
    assert ended.find("trn1.32xlarge", "on_demand", on=JUNE) == listed
    assert {held.origin for held in both.in_force(JUNE) if held.row.key == own.key} == {"own"}


def test_a_price_of_the_us_regions_is_of_each_of_them() -> None:
    for region in ("us-east-1", "us-east-2", "us-west-2", None):
        assert published().find("trn1.32xlarge", "on_demand", region=region).amount_per_hour == 21.5
    assert not covers("US regions", "us-gov-west-1")
    assert not covers("us-east-1", "us-east-2")
    with pytest.raises(InputError, match=r"known in eu-central-1, only in US regions.*prices set"):
        published().find("trn1.32xlarge", "on_demand", region="eu-central-1")


def test_the_regions_own_price_comes_before_that_of_the_us_regions() -> None:
    of_all, of_one = price_row(21.5, region="US regions"), price_row(25.0, region="us-west-1")
    assert book(of_all, of_one).find("trn1.32xlarge", "on_demand", region="us-west-1") == of_one
    assert book(of_all, of_one).find("trn1.32xlarge", "on_demand") == of_all


def test_prices_differ_by_region() -> None:
    found = {
        region: published().find("p5en.48xlarge", "on_demand", region=region).amount_per_hour
        for region in ("us-east-1", "us-west-1", None)
    }
    assert found == {"us-east-1": 63.296, "us-west-1": 79.12, None: 63.296}
    elsewhere = [price_row(30.0, region="eu-central-1"), price_row(31.0, region="eu-west-1")]
    with pytest.raises(InputError, match="eu-central-1, eu-west-1: say which region"):
        book(*elsewhere).find("trn1.32xlarge", "on_demand")
    assert book(elsewhere[0]).find("trn1.32xlarge", "on_demand") == elsewhere[0]


def test_where_no_region_is_said_what_is_collected_elsewhere_does_not_count() -> None:
    elsewhere = price_row(30.0, region="eu-central-1")
    mixed = {"published": published_prices()}
    assert (
        PriceBook(collected=[elsewhere], **mixed).find("trn1.32xlarge", "on_demand").amount_per_hour == 21.5
    )
    assert PriceBook(own=[elsewhere], **mixed).find("trn1.32xlarge", "on_demand") == elsewhere


def test_a_zone_says_its_region() -> None:
    found = published().find("p5en.48xlarge", "on_demand", zone="us-west-1b")
    assert found.amount_per_hour == 79.12
    by_id = book(spot(2.0, "use1-az4"), price_row(region="eu-west-1"))
    assert by_id.find("trn1.32xlarge", "spot", zone="use1-az4").amount_per_hour == 2.0
    with pytest.raises(InputError, match="zone use9-az9 is of a region that is not known"):
        published().find("p5en.48xlarge", "on_demand", zone="use9-az9")


def test_a_price_by_zone_asks_for_the_zone() -> None:
    zones = book(spot(2.0), spot(3.0, "us-east-1b"))
    assert zones.find("trn1.32xlarge", "spot", zone="us-east-1b").amount_per_hour == 3.0
    with pytest.raises(InputError, match=r"say which of us-east-1a \(2 USD/h.*us-east-1b \(3 USD/h"):
        zones.find("trn1.32xlarge", "spot")
    assert book(spot(2.0)).find("trn1.32xlarge", "spot").amount_per_hour == 2.0
    with pytest.raises(InputError, match="known in us-east-1c, only in us-east-1a, us-east-1b"):
        zones.find("trn1.32xlarge", "spot", zone="us-east-1c")


def test_a_price_of_the_region_is_of_its_zones() -> None:
    assert book(price_row()).find("trn1.32xlarge", "on_demand", zone="us-east-1a").amount_per_hour == 21.5


def test_a_spot_series_is_the_whole_history_of_a_zone() -> None:
    times = ["2026-03-01T00:00:00Z", "2026-03-01T06:00:00Z", "2026-03-02"]
    points = [spot(float(n + 1), valid_from=at, as_of=at) for n, at in enumerate(times)]
    found = book(*reversed(points), spot(9.0, "us-east-1b")).spot_rows("trn1.32xlarge", zone="us-east-1a")
    assert found == tuple(points)


def test_a_missing_price_is_found_with_its_reason() -> None:
    row = published().find("trn2.48xlarge", "on-demand")
    assert (row.amount_per_hour, row.kind) == (None, "unavailable")
    assert "capacity blocks" in (row.reason or "")


def test_a_price_seen_again_is_as_new_as_it_was_last_seen() -> None:
    since = "2026-01-01"
    once, again = (price_row(valid_from=since, as_of=seen) for seen in ("2026-03-01", "2026-06-01"))
    for rows in ((once, again), (again, once)):
        assert book(*rows).find("trn1.32xlarge", "on_demand") == again


@pytest.mark.parametrize(
    "rows",
    [
        [price_row(1.0), price_row(2.0)],
        [
            price_row(1.0, valid_from="2026-01-01", valid_to="2026-03-31"),
            price_row(2.0, valid_from="2026-03-31"),
        ],
        [price_row(1.0, valid_from="2026-01-01", as_of="2026-06-01"), price_row(2.0, as_of="2026-05-01")],
        [price_row(1.0, valid_to="2025-05"), price_row(2.0, valid_to="2026-05")],
        [
            price_row(1.0, valid_from="2026-01-01", as_of="2026-06-01"),
            price_row(1.0, as_of="2026-02-01"),
            price_row(2.0, as_of="2026-05-01"),
        ],
        [price_row(1.0), price_row(None)],
    ],
    ids=["same day", "ends too late", "still seen later", "no beginnings", "behind another", "and none"],
)
def test_overlapping_prices_are_refused(rows: list[PriceRow]) -> None:
    for one in (rows, rows[::-1]):
        with pytest.raises(
            InputError, match=r"overlapping prices of trn1\.32xlarge on-demand in us-east-1: "
        ):
            book(*one)


def test_prices_that_follow_one_another_do_not_overlap() -> None:
    rows = [
        price_row(1.0, valid_from="2026-01-01", valid_to="2026-03-31"),
        price_row(2.0, valid_from="2026-04-01", as_of="2026-04-02"),
        price_row(2.0, as_of="2026-04-20"),
        price_row(3.0, as_of="2026-05-01"),
    ]
    assert len(list(book(*rows).rows())) == 4


def test_a_price_seen_for_a_month_of_its_year_holds_after_that_month() -> None:
    year = price_row(5.0, valid_from="2026-01", valid_to="2026-12")
    month = price_row(5.0, valid_from="2026-03", valid_to="2026-04")
    assert book(year, month).find("trn1.32xlarge", "on-demand", on=JUNE) == year


def test_one_price_has_one_currency() -> None:
    with pytest.raises(InputError, match="priced in USD and in EUR"):
        book(price_row(as_of="2026-03-01"), price_row(as_of="2026-04-01", currency="EUR"))


def test_a_price_of_tomorrow_is_refused() -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    check_new([price_row(as_of="2026-03-01"), price_row(as_of="2026-02", valid_from="2026-03-01")], now)
    for changes in ({"as_of": "2026-03-02"}, {"valid_from": "2026-04"}, {"as_of": "2026-03-01T12:00:01Z"}):
        with pytest.raises(InputError, match=r"lies in the future of 2026-03-01"):
            check_new([price_row(**changes)], now)


def test_an_unknown_instance_names_its_neighbours() -> None:
    with pytest.raises(InputError, match=r"trn1\.32xlarge"):
        published().find("trn1.32xlrage", "on_demand")
    assert book(price_row(instance="ours.big")).known_instance(" Ours.BIG ") == "ours.big"


def test_an_unknown_model_names_those_there_are() -> None:
    assert row_model("reserved-3y") == row_model("reserved_3y") == "reserved_3y"
    with pytest.raises(InputError, match="on-demand, spot, reserved-1y"):
        row_model("savings")
    with pytest.raises(InputError, match=r"no reserved-1y price of trn1\.32xlarge is known"):
        published().find("trn1.32xlarge", "reserved-1y")
