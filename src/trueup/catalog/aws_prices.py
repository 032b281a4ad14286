"""Prices as AWS answers them: Price List API, spot price history, capacity-block offerings.

The functions take boto3's clients, or anything that answers like them. Shapes: botocore's service models
for `pricing` 2017-10-15 and `ec2` 2016-11-15; the price list's products are JSON in strings, and amounts
are strings.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from trueup.schema import InputError, MissingExtraError, PriceRow, TrueupError
from trueup.schema.bounds import HOURS_PER_YEAR
from trueup.schema.price_row import RowModel

from .price_csv import MINIMUM_BILLED_S

PRICE_LIST_REGION = "us-east-1"  # one of the few where the Price List API answers, for all regions
_FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
_TERMS: dict[str, RowModel] = {"1yr": "reserved_1y", "3yr": "reserved_3y"}
PRICE_LIST = "AWS Price List API"
SPOT_HISTORY = "AWS spot price history"
CAPACITY_BLOCKS = "AWS capacity-block offerings"
Answer = TypeVar("Answer")


class Clients(NamedTuple):
    """boto3's clients of one region; `pricing` answers for all."""

    region: str
    pricing: Any
    ec2: Any


def open_clients(region: str | None) -> Clients:
    """Clients with the credentials and, where none is given, the region of boto3's own chain.

    MissingExtraError without boto3; InputError where no region is to be found.
    """
    try:
        import boto3
    except ImportError:
        raise MissingExtraError("boto3", "aws", "fetching prices from AWS") from None
    found = asked(lambda: region or boto3.Session().region_name, "open a session")
    if found is None:
        raise InputError("no region: give --region, or set AWS_DEFAULT_REGION")
    return Clients(
        found,
        asked(lambda: boto3.client("pricing", region_name=PRICE_LIST_REGION), "open the Price List API"),
        asked(lambda: boto3.client("ec2", region_name=found), "open EC2"),
    )


def asked(ask: Callable[[], Answer], what: str) -> Answer:
    """The answer. What boto3 raises (no permission, no network) becomes a TrueupError; an InputError where
    there are no credentials, without which nothing further is to be asked."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        return ask()
    except ClientError as error:
        answer = error.response.get("Error", {})
        why = f"{answer.get('Code')}: {answer.get('Message')}"
        raise TrueupError(f"AWS refused to {what}: {why}") from None
    except BotoCoreError as error:
        kind = InputError if isinstance(error, NoCredentialsError | PartialCredentialsError) else TrueupError
        raise kind(
            f"could not {what}: {error} (credentials come from boto3's own chain: environment, ~/.aws, or "
            "the instance's role)"
        ) from None


def list_prices(clients: Clients, instance: str, now: datetime) -> list[PriceRow]:
    """On-demand and, where the answer has them, standard reserved prices of an instance in the region."""
    wanted = {**_FILTERS, "instanceType": instance, "regionCode": clients.region}
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    pages = clients.pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
    products = asked(
        lambda: [json.loads(one) for page in pages for one in page["PriceList"]],
        f"get the prices of {instance} in {clients.region}",
    )
    build = _Rows(instance, clients.region, now, PRICE_LIST)
    hourly = {price for product in products for price in _on_demand(product)}
    if len(hourly) != 1:
        several = ", ".join(f"{amount} {currency}" for amount, currency in sorted(hourly))
        why = f"several prices: {several}" if hourly else "no on-demand price"
        return [build.missing("on_demand", f"the price list has {why} for {instance} in {clients.region}")]
    ((amount, currency),) = hourly
    rows = [build.row("on_demand", amount, currency, minimum_billed_s=MINIMUM_BILLED_S)]
    for model, offers in _reserved(products).items():
        best = min(offers)
        rows.append(build.row(model, best.per_hour, best.currency, note=f"effective hourly, {best.paid}"))
    return rows


def spot_prices(clients: Clients, instance: str, days: float, now: datetime) -> list[PriceRow]:
    """Every change of the spot price in the last days, by zone, the one in force at their beginning
    included."""
    pages = clients.ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=[instance],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now - timedelta(days=days),
        EndTime=now,
    )
    history = asked(
        lambda: [one for page in pages for one in page["SpotPriceHistory"]],
        f"get the spot prices of {instance} in {clients.region}",
    )
    changes: dict[str, dict[datetime, float]] = defaultdict(dict)
    for one in history:
        if one["InstanceType"] == instance:
            changes[one["AvailabilityZone"]][one["Timestamp"]] = float(one["SpotPrice"])
    rows = []
    for zone, by_time in sorted(changes.items()):
        build = _Rows(instance, clients.region, now, SPOT_HISTORY, zone)
        for at, until in pairwise([*sorted(by_time), None]):
            assert at is not None
            rows.append(
                build.row(
                    "spot",
                    by_time[at],
                    "USD",
                    minimum_billed_s=MINIMUM_BILLED_S,
                    valid_from=_instant(at),
                    valid_to=None if until is None else _instant(until),
                )
            )
    return rows


def capacity_blocks(clients: Clients, instance: str, hours: int, now: datetime) -> list[PriceRow]:
    """Of each zone the cheapest block of so many hours for one instance: its fee ÷ (instances x hours)."""
    pages = clients.ec2.get_paginator("describe_capacity_block_offerings").paginate(
        InstanceType=instance, InstanceCount=1, CapacityDurationHours=hours
    )
    offerings = asked(
        lambda: [one for page in pages for one in page["CapacityBlockOfferings"]],
        f"get the capacity blocks of {instance} in {clients.region}",
    )
    cheapest: dict[str, PriceRow] = {}
    for one in offerings:
        length_h = one["CapacityBlockDurationHours"] + one.get("CapacityBlockDurationMinutes", 0) / 60
        amount = float(one["UpfrontFee"]) / (one["InstanceCount"] * length_h)
        zone = one["AvailabilityZone"]
        row = _Rows(instance, clients.region, now, CAPACITY_BLOCKS, zone).row(
            "capacity_block",
            amount,
            one["CurrencyCode"],
            block_hours=length_h,
            note=f"{one['UpfrontFee']} {one['CurrencyCode']} for {one['InstanceCount']} × {length_h:g} h "
            f"from {one['StartDate'].date()}",
        )
        if zone not in cheapest or amount < (cheapest[zone].amount_per_hour or math.inf):
            cheapest[zone] = row
    return [cheapest[zone] for zone in sorted(cheapest)]


class _Rows(NamedTuple):
    """What the rows of one answer have in common."""

    instance: str
    region: str
    now: datetime
    source: str
    zone: str | None = None

    def row(self, model: RowModel, amount: float, currency: str, **more: Any) -> PriceRow:
        if not (math.isfinite(amount) and amount > 0):
            return self.missing(model, f"{self.source} has a price of {amount}", currency)
        return self._made(model, currency, amount_per_hour=amount, kind="quoted", **more)

    def missing(self, model: RowModel, reason: str, currency: str = "USD") -> PriceRow:
        return self._made(model, currency, amount_per_hour=None, kind="unavailable", reason=reason)

    def _made(self, model: RowModel, currency: str, **more: Any) -> PriceRow:
        return PriceRow(
            instance=self.instance,
            region=self.region,
            zone=self.zone,
            model=model,
            currency=currency,
            as_of=_instant(self.now),
            source=self.source,
            **more,
        )


class _Reserved(NamedTuple):
    """An offer of a reserved instance, the cheapest first."""

    per_hour: float
    currency: str
    paid: str


def _on_demand(product: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    for dimension in _dimensions(product.get("terms", {}).get("OnDemand", {}).values()):
        yield from _amounts(dimension)


def _reserved(products: Iterable[Mapping[str, Any]]) -> dict[RowModel, list[_Reserved]]:
    """Standard offers by term: the hourly part and the upfront fee over the term's hours."""
    found: dict[RowModel, list[_Reserved]] = defaultdict(list)
    for product in products:
        for term in product.get("terms", {}).get("Reserved", {}).values():
            about = term.get("termAttributes", {})
            model = _TERMS.get(about.get("LeaseContractLength", ""))
            if model is None or about.get("OfferingClass") != "standard":
                continue
            hours = (1 if model == "reserved_1y" else 3) * HOURS_PER_YEAR
            parts = [
                (amount / (hours if dimension.get("unit") == "Quantity" else 1), currency)
                for dimension in _dimensions([term])
                for amount, currency in _amounts(dimension)
            ]
            if parts and len({currency for _, currency in parts}) == 1:
                per_hour = math.fsum(amount for amount, _ in parts)
                found[model].append(_Reserved(per_hour, parts[0][1], about.get("PurchaseOption", "")))
    return found


def _dimensions(terms: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for term in terms:
        yield from term.get("priceDimensions", {}).values()


def _amounts(dimension: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    for currency, amount in dimension["pricePerUnit"].items():
        yield float(amount), currency


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
