"""The sections of a recipe about money: what an hour costs, and what a million tokens may cost."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trueup.schema import Frozen
from trueup.schema.bounds import PER_HOUR, PER_MILLION_TOKENS, TARIFF


class PriceSection(Frozen):
    """What the whole instance costs an hour, and who says so.

    It may be left out: the price is then that of `platform.instance` (prices.md), or there is none.
    """

    usd_per_hour: float = Field(
        ge=PER_HOUR.least,
        le=PER_HOUR.most,
        allow_inf_nan=False,
        description="dollars an hour, everything included",
    )
    source: str = Field(min_length=1, description="who says so; shown wherever the price is used")
    kind: Literal["quoted", "measured", "estimated"] = Field(
        "quoted", description="how it is known: from a list, from a bill, or by a guess"
    )
    as_of: str | None = Field(None, description="date of the price")
    usd_per_kwh: float | None = Field(
        None,
        ge=TARIFF.least,
        le=TARIFF.most,
        allow_inf_nan=False,
        description="electricity tariff, which prices the measured energy",
    )


class BudgetSection(Frozen):
    """The red line: bills and reports say on which side a run is; `--enforce` exits with 3 beyond it."""

    usd_per_million_tokens: float | None = Field(
        None,
        ge=PER_MILLION_TOKENS.least,
        le=PER_MILLION_TOKENS.most,
        allow_inf_nan=False,
        description="dollars per million useful tokens, all in; null: none",
    )
