"""`trueup bill RUN...`."""

from __future__ import annotations

from .output import JSON_OPTION, print_json, print_rich
from .records import PRICE_OPTION, PRICE_SOURCE_OPTION, RUNS_ARGUMENT, price_given, records_of


def bill(
    refs: list[str] = RUNS_ARGUMENT,
    usd_per_hour: float | None = PRICE_OPTION,
    price_source: str = PRICE_SOURCE_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Say what every dollar of a run bought. With --json: one bill, or a list of them for several runs."""
    from trueup.analysis.bill import make_bill

    price = price_given(usd_per_hour, price_source)
    records = records_of(refs)
    bills = [make_bill(record, price) for record in records]
    if as_json:
        documents = [one.model_dump(mode="json") for one in bills]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    from trueup.report.terminal import bill_text

    for one, record in zip(bills, records, strict=True):
        print_rich(bill_text(one, record))
