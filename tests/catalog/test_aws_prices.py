"""Prices as AWS answers them, by botocore's own stubs; nothing here goes to the network."""

from __future__ import annotations

import builtins
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3")
from botocore.stub import Stubber  # noqa: E402

from trueup.catalog import PriceBook  # noqa: E402
from trueup.catalog.aws_prices import (  # noqa: E402
    Clients,
    capacity_blocks,
    list_prices,
    open_clients,
    spot_prices,
)
from trueup.schema import InputError, MissingExtraError, TrueupError  # noqa: E402

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
FILTERS = {
    "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
    "marketoption": "OnDemand", "instanceType": "p5.48xlarge", "regionCode": "us-east-1",
}  # fmt: skip
ASKED = {
    "ServiceCode": "AmazonEC2",
    "Filters": [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in FILTERS.items()],
}


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    return Clients("us-east-1", boto3.client("pricing", **keys), boto3.client("ec2", **keys))


def dimension(amount: str, unit: str = "Hrs", currency: str = "USD") -> dict[str, Any]:
    return {"unit": unit, "pricePerUnit": {currency: amount}, "rateCode": "x"}


def product(on_demand: dict[str, Any] | None = None, reserved: dict[str, Any] | None = None) -> str:
    """One element of PriceList: a string of JSON."""
    terms: dict[str, Any] = {}
    if on_demand is not None:
        terms["OnDemand"] = {"SKU.1": {"priceDimensions": {"SKU.1.1": on_demand}}}
    if reserved is not None:
        terms["Reserved"] = reserved
    return json.dumps({"product": {"sku": "SKU"}, "terms": terms, "version": "1"})


def offer(term: str, kind: str, paid: str, *dimensions: dict[str, Any]) -> dict[str, Any]:
    return {
        "priceDimensions": {str(n): one for n, one in enumerate(dimensions)},
        "termAttributes": {"LeaseContractLength": term, "OfferingClass": kind, "PurchaseOption": paid},
    }


def test_the_on_demand_price(clients: Clients) -> None:
    with Stubber(clients.pricing) as stub:
        stub.add_response("get_products", {"PriceList": [product(dimension("55.0400000000"))]}, ASKED)
        (row,) = list_prices(clients, "p5.48xlarge", NOW)
        stub.assert_no_pending_responses()
    assert (row.model, row.amount_per_hour, row.currency) == ("on_demand", 55.04, "USD")
    assert (row.as_of, row.source, row.kind) == ("2026-11-29T12:00:00Z", "AWS Price List API", "quoted")
    assert (row.region, row.zone, row.minimum_billed_s) == ("us-east-1", None, 60)


def test_every_page_is_read(clients: Clients) -> None:
    with Stubber(clients.pricing) as stub:
        stub.add_response("get_products", {"PriceList": [], "NextToken": "more"}, ASKED)
        page = {"PriceList": [product(dimension("55.04"))]}
        stub.add_response("get_products", page, {**ASKED, "NextToken": "more"})
        (row,) = list_prices(clients, "p5.48xlarge", NOW)
    assert row.amount_per_hour == 55.04


@pytest.mark.parametrize(
    ("products", "reason"),
    [
        ([], "no on-demand price for p5.48xlarge in us-east-1"),
        ([product()], "no on-demand price"),
        ([product(dimension("0.0000000000"))], "a price of 0.0"),
        ([product(dimension("55.04")), product(dimension("66.05"))], "several prices: 55.04 USD, 66.05 USD"),
    ],
)
def test_no_single_price_is_a_missing_one(clients: Clients, products: list[str], reason: str) -> None:
    with Stubber(clients.pricing) as stub:
        stub.add_response("get_products", {"PriceList": products}, ASKED)
        (row,) = list_prices(clients, "p5.48xlarge", NOW)
    assert (row.amount_per_hour, row.kind) == (None, "unavailable")
    assert reason in (row.reason or "")


def test_another_currency_is_kept(clients: Clients) -> None:
    with Stubber(clients.pricing) as stub:
        stub.add_response("get_products", {"PriceList": [product(dimension("400", currency="CNY"))]}, ASKED)
        (row,) = list_prices(clients, "p5.48xlarge", NOW)
    assert (row.amount_per_hour, row.currency) == (400.0, "CNY")


def test_the_cheapest_standard_reservation_of_each_term(clients: Clients) -> None:
    reserved = {
        "a": offer("1yr", "standard", "No Upfront", dimension("40")),
        "b": offer("1yr", "standard", "All Upfront", dimension("332880", "Quantity"), dimension("0")),
        "c": offer("1yr", "convertible", "No Upfront", dimension("1")),
        "d": offer("3yr", "standard", "Partial Upfront", dimension("262800", "Quantity"), dimension("11")),
        "e": offer("5yr", "standard", "No Upfront", dimension("1")),
    }
    with Stubber(clients.pricing) as stub:
        stub.add_response("get_products", {"PriceList": [product(dimension("55.04"), reserved)]}, ASKED)
        rows = {row.model: row for row in list_prices(clients, "p5.48xlarge", NOW)}
    assert set(rows) == {"on_demand", "reserved_1y", "reserved_3y"}
    assert rows["reserved_1y"].amount_per_hour == pytest.approx(332_880 / 8760)
    assert rows["reserved_1y"].note == "effective hourly, All Upfront"
    assert rows["reserved_3y"].amount_per_hour == pytest.approx(262_800 / (3 * 8760) + 11)


def spot_point(zone: str, hour: int, amount: str) -> dict[str, Any]:
    at = datetime(2026, 11, 28, hour, tzinfo=UTC)
    return {
        "AvailabilityZone": zone, "InstanceType": "p5.48xlarge", "ProductDescription": "Linux/UNIX",
        "SpotPrice": amount, "Timestamp": at,
    }  # fmt: skip


def test_the_spot_history_is_a_series_for_each_zone(clients: Clients) -> None:
    asked = {
        "InstanceTypes": ["p5.48xlarge"], "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": NOW - timedelta(days=7), "EndTime": NOW,
    }  # fmt: skip
    newest_first = [spot_point("us-east-1a", 9, "12.5"), spot_point("us-east-1b", 4, "20")]
    older = [spot_point("us-east-1a", 3, "11.25"), spot_point("us-east-1a", 9, "12.5")]
    with Stubber(clients.ec2) as stub:
        name = "describe_spot_price_history"
        stub.add_response(name, {"SpotPriceHistory": newest_first, "NextToken": "more"}, asked)
        stub.add_response(name, {"SpotPriceHistory": older}, {**asked, "NextToken": "more"})
        rows = spot_prices(clients, "p5.48xlarge", 7, NOW)
    shown = [(row.zone, row.valid_from, row.valid_to, row.amount_per_hour) for row in rows]
    assert shown == [
        ("us-east-1a", "2026-11-28T03:00:00Z", "2026-11-28T09:00:00Z", 11.25),
        ("us-east-1a", "2026-11-28T09:00:00Z", None, 12.5),
        ("us-east-1b", "2026-11-28T04:00:00Z", None, 20.0),
    ]
    assert PriceBook(collected=rows).spot_rows("p5.48xlarge", zone="us-east-1a") == tuple(rows[:2])


def test_a_history_fetched_again_goes_on_with_the_last_one(clients: Clients) -> None:
    later = NOW + timedelta(hours=1)
    change = {**spot_point("us-east-1a", 9, "13"), "Timestamp": NOW + timedelta(minutes=30)}
    fetched = []
    with Stubber(clients.ec2) as stub:
        for points, now in [([spot_point("us-east-1a", 9, "12.5")], NOW), ([change], later)]:
            answer = {"SpotPriceHistory": [spot_point("us-east-1a", 9, "12.5"), *points]}
            stub.add_response("describe_spot_price_history", answer)
            fetched += spot_prices(clients, "p5.48xlarge", 7, now)
    series = PriceBook(collected=fetched).spot_rows("p5.48xlarge")
    assert [(row.amount_per_hour, row.valid_to) for row in series] == [
        (12.5, "2026-11-29T12:30:00Z"),
        (13.0, None),
    ]


def test_the_spot_history_of_a_simulated_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto's answer, through boto3's own machinery: a constant price in some zones."""
    moto = pytest.importorskip("moto")
    with moto.mock_aws():
        ec2 = boto3.client("ec2", region_name="us-east-1")
        rows = spot_prices(Clients("us-east-1", None, ec2), "m5.large", 1, datetime.now(UTC))
    assert rows
    assert all(row.zone is not None and row.zone.startswith("us-east-1") for row in rows)
    assert all(row.amount_per_hour is not None and row.currency == "USD" for row in rows)
    PriceBook(collected=rows)


def test_a_capacity_block_costs_its_fee_over_instances_and_hours(clients: Clients) -> None:
    def offering(zone: str, fee: str, hours: int = 24, count: int = 1) -> dict[str, Any]:
        return {
            "CapacityBlockOfferingId": "cb-1", "InstanceType": "p5.48xlarge", "AvailabilityZone": zone,
            "InstanceCount": count, "StartDate": datetime(2026, 12, 3, 11, 30, tzinfo=UTC),
            "EndDate": datetime(2026, 12, 4, 11, 30, tzinfo=UTC), "CapacityBlockDurationHours": hours,
            "UpfrontFee": fee, "CurrencyCode": "USD", "Tenancy": "default",
        }  # fmt: skip

    asked = {"InstanceType": "p5.48xlarge", "InstanceCount": 1, "CapacityDurationHours": 24}
    name = "describe_capacity_block_offerings"
    with Stubber(clients.ec2) as stub:
        first = {"CapacityBlockOfferings": [offering("us-east-1b", "960.0")], "NextToken": "more"}
        stub.add_response(name, first, asked)
        rest = [offering("us-east-1a", "755.136"), offering("us-east-1b", "1440.0", count=2)]
        stub.add_response(name, {"CapacityBlockOfferings": rest}, {**asked, "NextToken": "more"})
        rows = capacity_blocks(clients, "p5.48xlarge", 24, NOW)
    assert [(row.zone, row.amount_per_hour) for row in rows] == [
        ("us-east-1a", pytest.approx(755.136 / 24)),
        ("us-east-1b", pytest.approx(1440 / 48)),
    ]
    assert {row.block_hours for row in rows} == {24}
    assert rows[1].note == "1440.0 USD for 2 × 24 h from 2026-12-03"


def test_a_refusal_is_told_in_its_own_words(clients: Clients) -> None:
    with Stubber(clients.ec2) as stub:
        stub.add_client_error("describe_spot_price_history", "UnauthorizedOperation", "not you")
        with pytest.raises(
            TrueupError, match=r"the spot prices of p5\.48xlarge.*UnauthorizedOperation: not you"
        ):
            spot_prices(clients, "p5.48xlarge", 7, NOW)


def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No credentials and no region anywhere."""
    for name in (
        "AWS_PROFILE",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def test_without_credentials_it_says_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    bare(monkeypatch, tmp_path)
    with pytest.raises(InputError, match=r"could not get the spot prices.*boto3's own chain"):
        spot_prices(open_clients("us-east-1"), "p5.48xlarge", 7, NOW)


def test_the_region_is_boto3s_own_where_none_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    bare(monkeypatch, tmp_path)
    with pytest.raises(InputError, match="--region"):
        open_clients(None)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    found = open_clients(None)
    assert (found.region, found.ec2.meta.region_name) == ("eu-central-1", "eu-central-1")
    assert found.pricing.meta.region_name == "us-east-1"


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "boto3":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'trueup\[aws\]'"):
        open_clients("us-east-1")
