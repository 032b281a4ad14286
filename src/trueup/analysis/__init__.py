"""What follows from a run's records: steady part, statistics, measurements and the bill. Pure functions.

`summarize` is loaded when it is asked for: it needs numpy, and the bill, which is printed often, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .bill import Bill, BillLine, bill_document, make_bill

if TYPE_CHECKING:
    from .measure import summarize

__all__ = ["Bill", "BillLine", "bill_document", "make_bill", "summarize"]


def __getattr__(name: str) -> Any:
    if name == "summarize":
        from .measure import summarize

        return summarize
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
