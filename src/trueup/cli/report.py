"""`trueup report RUN... -o FILE`."""

from __future__ import annotations

from pathlib import Path

import typer

from .output import JSON_OPTION, print_json, say
from .records import PRICE_OPTION, PRICE_SOURCE_OPTION, RUNS_ARGUMENT, price_given, records_of


def report(
    refs: list[str] = RUNS_ARGUMENT,
    out: Path = typer.Option(Path("report.html"), "-o", "--output", help="Where the page is written."),
    usd_per_hour: float | None = PRICE_OPTION,
    price_source: str = PRICE_SOURCE_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write one self-contained HTML page about one run or several."""
    from trueup.analysis.bill import Bill, make_bill
    from trueup.report.html import render, write
    from trueup.schema import InputError

    price = price_given(usd_per_hour, price_source)
    records = records_of(refs, samples=True)
    bills: dict[str, Bill | None] = {}
    for record in records:
        try:
            bills[record.header.id] = make_bill(record, price)
        except InputError:  # a run without a price has a report all the same, which says how to give one
            bills[record.header.id] = None
    page = render(records, bills=bills)
    write(out, page)
    size = len(page.encode())
    if as_json:
        print_json({"path": str(out), "bytes": size, "runs": [record.header.id for record in records]})
    else:
        say(f"wrote {out} ({size / 1e3:,.0f} kB)")
