"""What prices, times and counts are at the least and at the most.

Far beyond anything that is rented, run or paid, so that only a slip or a damaged record is outside; and near
enough that products and quotients of what is inside are numbers: none becomes infinite.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from .errors import InputError


class Bounds(NamedTuple):
    """Both ends are inside; NaN is outside."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"

    def hold(self, value: float) -> bool:
        return self.least <= value <= self.most

    def require(self, value: float, what: str) -> None:
        """InputError, beginning with `what`, for a value outside."""
        if not self.hold(value):
            raise InputError(f"{what}: expected {self}")

    def checked(self, value: float) -> float:
        """ValueError for a value outside: for fields of records."""
        if not self.hold(value):
            raise ValueError(f"expected {self}")
        return value


PER_HOUR = Bounds(1e-9, 1e9)  # of an instance, in any currency
MONEY = Bounds(0, 1e15)  # of one payment, in any currency
PER_KWH = Bounds(0, 1e6)  # of one's own electricity, which may be free
TARIFF = Bounds(1e-9, 1e6)
PER_MILLION_TOKENS = Bounds(1e-9, 1e12)
SECONDS = Bounds(0, 1e10)  # 317 years
SOME_SECONDS = Bounds(1e-6, 1e10)
HOURS = Bounds(1e-3, 1e7)
YEARS = Bounds(1e-3, 1e3)
SHARE = Bounds(1e-6, 1)
COUNT = Bounds(0, 1e9)  # of interruptions
PER_DAY = Bounds(1e-3, 1e12)  # requests to a service
PEAK = Bounds(1, 1e5)  # the busiest rate over the mean; all of a day in one second is 86,400
RUNS = Bounds(1, 10**9)
TOKENS = Bounds(1, 1e18)
TOKENS_PER_S = Bounds(1e-9, 1e15)
WATTS = Bounds(0, 1e9)
PUE = Bounds(1, 100)
PURCHASE = Bounds(0.01, 1e15)
HOURS_PER_YEAR = 8760.0
USED_HOURS = Bounds(0.01, HOURS_PER_YEAR)  # of a year's

HourlyAmount = Annotated[float, AfterValidator(PER_HOUR.checked)]
Payment = Annotated[float, AfterValidator(MONEY.checked)]
PerKwh = Annotated[float, AfterValidator(PER_KWH.checked)]
Seconds = Annotated[float, AfterValidator(SECONDS.checked)]
SomeSeconds = Annotated[float, AfterValidator(SOME_SECONDS.checked)]
Hours = Annotated[float, AfterValidator(HOURS.checked)]
Years = Annotated[float, AfterValidator(YEARS.checked)]
Share = Annotated[float, AfterValidator(SHARE.checked)]
Watts = Annotated[float, AfterValidator(WATTS.checked)]
Pue = Annotated[float, AfterValidator(PUE.checked)]
Purchase = Annotated[float, AfterValidator(PURCHASE.checked)]
UsedHours = Annotated[float, AfterValidator(USED_HOURS.checked)]
