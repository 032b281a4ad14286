"""From what a person calls a price, such as `spot` or `reserved-3y=8.20,utilisation=0.7`, to a run's terms.

A name alone is looked up in the price book, for the run's instance and region on the day the run began. A
name with an amount is that price. What cannot be found is a price without terms, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError

from trueup.catalog import PriceBook
from trueup.schema import (
    CapacityBlockTerms,
    Frozen,
    HourlyPrice,
    InputError,
    Measurement,
    OnDemandTerms,
    OwnedTerms,
    Price,
    PriceRow,
    PricingTerms,
    ReservedTerms,
    RunRecord,
    SpotPoint,
    SpotTerms,
)
from trueup.schema.bounds import PER_HOUR, SOME_SECONDS
from trueup.schema.price_row import period
from trueup.schema.price_terms import ModelName

from .bill import started_at
from .outcomes import wall_seconds
from .price_models import cost_of
from .side_by_side import AskedPrice
from .spot import interruption_rate

NAMES: tuple[ModelName, ...] = get_args(ModelName)
GIVEN = "given on the command line"
_AMOUNT = re.compile(r"(?P<amount>[-+.\w]+?)\s*(?P<currency>[A-Z]{3})?")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "on-demand": ("minimum_s",),
    "spot": (
        *("interruptions_per_hour", "interruptions", "observed_hours"),
        *("checkpoint_interval_s", "restart_s", "save_s", "minimum_s"),
    ),
    "reserved-1y": ("upfront", "utilisation"),
    "reserved-3y": ("upfront", "utilisation"),
    "capacity-block": ("block_hours", "utilisation"),
    "owned": (),
}


class PriceRequest(Frozen):
    """One `--price`, read. `value` is what follows the name: an amount an hour, or the file of `owned`."""

    text: str
    name: ModelName
    value: str | None = None
    amount: float | None = None
    currency: str = "USD"
    options: dict[str, float] = Field(default_factory=dict)


class Place(Frozen):
    """Where a run took place, for the price that held there; None: not known."""

    instance: str | None = None
    region: str | None = None
    zone: str | None = None


def price_request(text: str) -> PriceRequest:
    """MODEL[=AMOUNT[CUR]][,OPTION=NUMBER…], or owned=FILE. InputError for anything else."""
    head, *rest = text.split(",")
    word, _, value = (part.strip() for part in head.partition("="))
    name = next((one for one in NAMES if one == word.lower().replace("_", "-")), None)
    if name is None:
        raise InputError(f"--price {text}: there is no price model '{word}'; it is one of {', '.join(NAMES)}")
    if name == "owned":
        if not value or rest:
            raise InputError(
                f"--price {text}: a machine of one's own is described in a file: owned=FILE.yaml"
            )
        return PriceRequest(text=text, name=name, value=value)
    options: dict[str, float] = {}
    for key, number in (_option(text, name, part) for part in rest):
        if key in options:
            raise InputError(f"--price {text}: {key} is given twice; which one counts is not known")
        options[key] = number
    if "=" not in head:
        return PriceRequest(text=text, name=name, options=options)
    found = _AMOUNT.fullmatch(value)
    amount = _number(found["amount"]) if found else None
    if found is None or amount is None or not PER_HOUR.hold(amount):
        raise InputError(
            f"--price {text}: expected an amount an hour above zero, {PER_HOUR}, as {name}=12.50 or =12.50EUR"
        )
    currency = found["currency"] or "USD"
    return PriceRequest(text=text, name=name, value=value, amount=amount, currency=currency, options=options)


def asked_price(
    request: PriceRequest, record: RunRecord, book: PriceBook, owned: OwnedTerms | None = None
) -> AskedPrice:
    """The terms of this request for this run. `owned`: what its file holds."""
    if request.name == "owned":
        return AskedPrice(
            label=request.text, terms=owned, reason=None if owned else "the machine is not described"
        )
    try:
        given = request.amount is not None
        terms = _given(request, record) if given else _looked_up(request, record, book)
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"])
        said = problem["msg"].removeprefix("Value error, ")
        raise InputError(f"--price {request.text}: {where}{said}") from None
    return terms if isinstance(terms, AskedPrice) else AskedPrice(label=request.text, terms=terms)


def listed_prices(record: RunRecord, book: PriceBook) -> list[AskedPrice]:
    """Every price model that the book has a price of, for this run's place and day."""
    looked_up = (asked_price(price_request(name), record, book) for name in NAMES if name != "owned")
    return [one for one in looked_up if one.terms is not None]


def as_price(asked: AskedPrice, record: RunRecord) -> Price | None:
    """An hour of these terms as the one price of a bill; None where it is not known, or not in dollars."""
    wall_s = wall_seconds(record)
    if asked.terms is None or asked.terms.currency != "USD" or wall_s <= 0:
        return None
    found = cost_of(asked.terms, wall_s, started=started_at(record.header)).per_hour
    if not found.value:
        return None
    kind: Literal["quoted", "estimated"] = "estimated" if found.kind == "estimated" else "quoted"
    return Price(usd_per_hour=found.value, source=f"{asked.label}: {found.method}", kind=kind)


def place_of(record: RunRecord) -> Place:
    """The recipe's instance, else what the machine said of itself; region and zone only the machine knows."""
    told = record.header.environment.get("instance")
    told = told if isinstance(told, Mapping) else {}
    section = record.header.recipe.get("platform")
    in_recipe = section.get("instance") if isinstance(section, Mapping) else None
    own = told.get("instanceType")
    same = in_recipe is None or in_recipe == own
    return Place(
        instance=in_recipe or own,
        region=told.get("region") if same else None,
        zone=told.get("availabilityZone") if same else None,
    )


def _option(text: str, name: str, part: str) -> tuple[str, float]:
    key, _, value = (one.strip() for one in part.partition("="))
    if key not in _OPTIONS[name]:
        raise InputError(f"--price {text}: {name} has no '{key}'; it has {', '.join(_OPTIONS[name])}")
    number = _number(value)
    if number is None or not isfinite(number):
        raise InputError(f"--price {text}: {key} is a number, such as {key}=1, not '{value}'")
    return key, number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _given(request: PriceRequest, record: RunRecord) -> PricingTerms:
    price = HourlyPrice(amount=request.amount, currency=request.currency, kind="quoted", source=GIVEN)
    if request.name != "spot":
        return _at(request, price)
    started = started_at(record.header)
    at = started or period("1970-01-01")[0]
    return _spot(request, (SpotPoint(at=at, amount=request.amount or 0.0),), price, record)


def _looked_up(request: PriceRequest, record: RunRecord, book: PriceBook) -> PricingTerms | AskedPrice:
    place, started = place_of(record), started_at(record.header)
    if place.instance is None:
        reason = (
            "the run's instance is not known, so there is no price to look up; the recipe says it by "
            f"platform.instance, or --price {request.name}=AMOUNT gives a price"
        )
        return AskedPrice(label=request.text, reason=reason)
    on = started.date() if started else None
    region, zone = place.region, place.zone
    try:
        row = book.find(place.instance, request.name, region=region, zone=zone, on=on)
        spot = request.name == "spot"
        series = book.spot_rows(place.instance, region=region, zone=zone, on=on) if spot else ()
    except InputError as error:
        return AskedPrice(label=request.text, reason=str(error))
    if row.amount_per_hour is None:
        return AskedPrice(label=request.text, reason=f"{row.reason} ({row.source}, {row.as_of})")
    if spot:
        points = tuple(
            SpotPoint(at=_start(one), amount=one.amount_per_hour) for one in series if one.amount_per_hour
        )
        return _spot(request, points, row.price, record)
    return _at(request, row.price, minimum_s=row.minimum_billed_s, block_hours=row.block_hours)


def _start(row: PriceRow) -> datetime:
    return row.start or period("1970-01-01")[0]


def _at(
    request: PriceRequest,
    price: HourlyPrice,
    minimum_s: float | None = None,
    block_hours: float | None = None,
) -> PricingTerms:
    options: dict[str, Any] = {"currency": price.currency, "price": price}
    if request.name == "on-demand":
        return OnDemandTerms(**(options | {"minimum_s": minimum_s or 0.0} | request.options))
    if request.name == "capacity-block":
        return CapacityBlockTerms(**(options | {"block_hours": block_hours} | request.options))
    return ReservedTerms(**(options | {"name": request.name} | request.options))


def _spot(
    request: PriceRequest, series: tuple[SpotPoint, ...], price: HourlyPrice, record: RunRecord
) -> SpotTerms:
    options: dict[str, Any] = _saves(record) | request.options
    options["interruptions_per_hour"] = _rate(request, options)
    return SpotTerms(
        currency=price.currency,
        series=series,
        source=price.source,
        kind=price.kind,
        as_of=price.as_of,
        **options,
    )


def _rate(request: PriceRequest, options: dict[str, Any]) -> Measurement | None:
    """Of interruptions: as given, or from how many were seen in how many hours of such instances, with its
    interval. Takes its keys out of the options."""
    given, count, hours = (
        options.pop(key, None) for key in ("interruptions_per_hour", "interruptions", "observed_hours")
    )
    if count is None and hours is None:
        return None if given is None else Measurement(value=given, unit="1/h", kind="quoted", method=GIVEN)
    if given is not None or count is None or hours is None or count != int(count):
        raise InputError(
            f"--price {request.text}: give interruptions_per_hour, or a whole number of interruptions with "
            "the observed_hours of such instances they were seen in: spot,interruptions=3,observed_hours=240"
        )
    return interruption_rate(int(count), hours)


def _saves(record: RunRecord) -> dict[str, float]:
    """What the run itself shows of saving and starting: seconds of a save, from save to save, and before its
    first step."""
    found: dict[str, float] = {}
    saving = [span for span in record.spans if span.name == "checkpoint"]
    count, seconds = sum(span.count for span in saving), sum(span.seconds for span in saving)
    if record.steps:
        found["restart_s"] = record.steps[0].start_s
    if count and record.header.wall_s:
        found["checkpoint_interval_s"] = record.header.wall_s / count
        found["save_s"] = seconds / count
    return {name: value for name, value in found.items() if SOME_SECONDS.hold(value)}
