"""Price rows for the tests of prices."""

from __future__ import annotations

from typing import Any

from trueup.schema import PriceRow


def price_row(amount: float | None = 21.5, **changes: Any) -> PriceRow:
    fields: dict[str, Any] = {
        "instance": "trn1.32xlarge", "region": "us-east-1", "model": "on_demand", "amount_per_hour": amount,
        "currency": "USD", "as_of": "2026-03-01", "source": "a list",
        "kind": "quoted" if amount is not None else "unavailable",
        "reason": None if amount is not None else "not listed",
    }  # fmt: skip
    return PriceRow(**(fields | changes))
