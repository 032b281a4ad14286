"""One published or agreed price of an instance, and when it held. Money carries its currency everywhere.

Dates are ISO 8601 text as exact as their source: `2025-06`, `2026-11-29`, `2026-11-29T12:00:00Z`. Without a
zone an instant is UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from .bounds import HourlyAmount, Hours, Seconds
from .measurement import Frozen

RowModel = Literal["on_demand", "spot", "reserved_1y", "reserved_3y", "capacity_block"]
ROW_MODELS: tuple[RowModel, ...] = get_args(RowModel)
Origin = Literal["own", "collected", "published"]  # set by hand; imported or fetched; came with trueup
PriceKind = Literal["measured", "quoted", "estimated", "unavailable"]
_MONTH = re.compile(r"\d{4}-\d{2}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")  # ISO 8601 has other ways to write a day; one is enough


def period(text: str) -> tuple[datetime, datetime]:
    """The first instant of a date and the first one after it; of an instant itself, twice the same.

    ValueError for what is no ISO date.
    """
    text = text.strip()
    if _MONTH.fullmatch(text):
        first = datetime.fromisoformat(f"{text}-01").replace(tzinfo=UTC)
        return first, (first + timedelta(days=31)).replace(day=1)
    if not _DAY.match(text):
        raise ValueError(f"{text!r} is no date")
    found = datetime.fromisoformat(text)
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return found, found + timedelta(days=1) if _DAY.fullmatch(text) else found


def _is_date(text: str) -> str:
    try:
        period(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no date: write 2026-11-29, 2026-11 or 2026-11-29T12:00:00Z") from None
    return text.strip()


IsoDate = Annotated[str, AfterValidator(_is_date)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class PriceRow(Frozen):
    """What one hour of a whole instance costs under one price model, in one region, from one source.

    `as_of` is when the source was seen to say so. The row holds from `valid_from`; without it from `as_of`,
    or, where `valid_to` is given, for all time before that. It holds to the end of `valid_to`; without it
    until the next row of its kind begins. A missing amount carries its reason.
    """

    instance: _Name
    region: _Name  # the provider's name of it, or "US regions"
    zone: _Name | None = None  # None: in every zone
    model: RowModel
    amount_per_hour: HourlyAmount | None
    currency: Currency
    minimum_billed_s: Seconds | None = None  # None: not known
    block_hours: Hours | None = None  # length of a capacity block
    valid_from: IsoDate | None = None
    valid_to: IsoDate | None = None
    as_of: IsoDate
    source: _Name
    kind: PriceKind
    reason: str | None = None
    note: str = ""

    @model_validator(mode="after")
    def _amount_or_reason(self) -> Self:
        if (self.amount_per_hour is None) != (self.kind == "unavailable"):
            raise ValueError("a price has an amount, or is 'unavailable'; never both, never neither")
        if self.amount_per_hour is None and not self.reason:
            raise ValueError("an unavailable price carries its reason")
        end = self.end
        if self.valid_from is not None and end is not None and period(self.valid_from)[0] >= end:
            raise ValueError(f"the price ends on {self.valid_to}, before it begins on {self.valid_from}")
        return self

    @property
    def key(self) -> tuple[str, str, str | None, RowModel]:
        """Rows of one key are one price's history."""
        return self.instance, self.region, self.zone, self.model

    @property
    def unit(self) -> str:
        return f"{self.currency}/h"

    @property
    def start(self) -> datetime | None:
        """The first instant at which it held; None: there is no earliest."""
        if self.valid_from is not None:
            return period(self.valid_from)[0]
        return None if self.valid_to is not None else period(self.as_of)[0]

    @property
    def end(self) -> datetime | None:
        """The first instant at which it held no more; None: not known to have ended."""
        if self.valid_to is None:
            return None
        return period(self.valid_to)[1]

    @property
    def price(self) -> HourlyPrice:
        """What price models need of it."""
        where = f"{self.instance} {self.model}, {self.zone or self.region}"
        return HourlyPrice(
            amount=self.amount_per_hour,
            currency=self.currency,
            kind=self.kind,
            source=f"{where}: {self.source}",
            as_of=self.as_of,
            valid_to=self.valid_to,
            reason=self.reason,
        )


class PriceEntry(Frozen):
    """A row as a home keeps it. One that `replaces` takes the place of those of its key that begin when it
    does."""

    row: PriceRow
    origin: Literal["own", "collected"]
    recorded: IsoDate
    replaces: bool = False


class HourlyPrice(Frozen):
    """An amount an hour in a currency, with where it is from; or the reason why there is none."""

    amount: HourlyAmount | None
    currency: Currency
    kind: PriceKind = "quoted"
    source: str = Field(min_length=1)
    as_of: IsoDate | None = None
    valid_to: IsoDate | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _amount_or_reason(self) -> Self:
        if (self.amount is None) != (self.kind == "unavailable") or (self.amount is None and not self.reason):
            raise ValueError("a price has an amount, or is 'unavailable' with a reason")
        return self
