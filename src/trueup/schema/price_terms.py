"""The terms of each price model: what a run's seconds cost follows from them alone
(`analysis.price_models`)."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from .bounds import (
    COUNT,
    HourlyAmount,
    Hours,
    Payment,
    PerKwh,
    Pue,
    Purchase,
    Seconds,
    Share,
    SomeSeconds,
    UsedHours,
    Watts,
    Years,
)
from .measurement import Frozen, Measurement
from .price_row import Currency, HourlyPrice, IsoDate, PriceKind

ModelName = Literal["on-demand", "spot", "reserved-1y", "reserved-3y", "capacity-block", "owned"]


class PriceModel(Frozen):
    """Base of the terms under which an hour is paid for."""

    name: ModelName
    currency: Currency


class _AtHourlyPrice(PriceModel):
    price: HourlyPrice

    @model_validator(mode="after")
    def _one_currency(self) -> Self:
        if self.price.currency != self.currency:
            raise ValueError(f"terms in {self.currency} with a price in {self.price.currency}")
        return self


class OnDemandTerms(_AtHourlyPrice):
    """By the second, and for at least `minimum_s`."""

    name: Literal["on-demand"] = "on-demand"
    minimum_s: Seconds = 0.0


class ReservedTerms(_AtHourlyPrice):
    """One instance kept for a term. `price` is the recurring part; `upfront` is paid once.

    `utilisation` is the share of the reserved hours that are used: the others are paid for as well.
    """

    name: Literal["reserved-1y", "reserved-3y"]
    upfront: Payment = 0.0
    utilisation: Share = 1.0

    @property
    def years(self) -> int:
        return 1 if self.name == "reserved-1y" else 3


class CapacityBlockTerms(_AtHourlyPrice):
    """A block of `block_hours`, paid for beforehand; `price` is fee ÷ (instances x hours).

    With `utilisation`, idle hours of blocks are shared by what runs in them. Without it, whole blocks are
    bought for the one run, where their length is known.
    """

    name: Literal["capacity-block"] = "capacity-block"
    block_hours: Hours | None = None
    utilisation: Share | None = None


class SpotPoint(Frozen):
    """From this instant an hour costs this, until the next point."""

    at: AwareDatetime
    amount: HourlyAmount


class SpotTerms(PriceModel):
    """A price that changes with time, and an instance that may be taken away.

    `checkpoint_interval_s` is from save to save with the save in it; None: nothing is saved, and an
    interruption loses all. `restart_s` is from an interruption to the first new step; `save_s` what a save
    takes.
    """

    name: Literal["spot"] = "spot"
    series: tuple[SpotPoint, ...] = Field(min_length=1)
    source: str = Field(min_length=1)
    kind: PriceKind = "quoted"
    as_of: IsoDate | None = None
    minimum_s: Seconds = 0.0
    interruptions_per_hour: Measurement | None = None  # unit "1/h"; None: not known
    checkpoint_interval_s: SomeSeconds | None = None
    restart_s: Seconds | None = None
    save_s: SomeSeconds | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.kind == "unavailable":
            raise ValueError("a spot series has prices; leave it out where there are none")
        if any(later.at <= earlier.at for earlier, later in pairwise(self.series)):
            raise ValueError("a spot series goes forward in time, one price an instant")
        rate = self.interruptions_per_hour
        if rate is not None and rate.unit != "1/h":
            raise ValueError(f"interruptions are counted in 1/h, not in {rate.unit}")
        if rate is not None and rate.value is not None and not COUNT.hold(rate.value):
            raise ValueError(f"a rate of {rate.value} interruptions an hour: expected {COUNT}")
        return self


class OwnedTerms(PriceModel):
    """A machine of one's own. All amounts are in `currency`.

    `power_w` is what the machine draws in the hours it is used, `idle_power_w` in the others of the year;
    PUE is the whole site's draw over the machine's. `residual` is what it fetches when its life is over.
    """

    name: Literal["owned"] = "owned"
    capital: Purchase
    life_years: Years
    residual: Payment = 0.0
    power_w: Watts
    idle_power_w: Watts = 0.0
    pue: Pue
    electricity_per_kwh: PerKwh
    hosting_per_year: Payment = 0.0
    staff_per_year: Payment = 0.0
    hours_per_year: UsedHours
    kind: Literal["measured", "quoted", "estimated"] = "estimated"
    source: str = Field(min_length=1)
    as_of: IsoDate | None = None

    @model_validator(mode="after")
    def _loses_value(self) -> Self:
        if self.residual > self.capital:
            raise ValueError(f"residual of {self.residual:g} is above the capital of {self.capital:g}")
        return self


PricingTerms = OnDemandTerms | SpotTerms | ReservedTerms | CapacityBlockTerms | OwnedTerms
