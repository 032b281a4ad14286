"""`trueup report RUN... -o FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .garbage import uncollected
from .load_bills import PEAK_OPTION, TRAFFIC_OPTION, all_loads, load_bills_known, traffic_asked
from .output import JSON_OPTION, print_json, say
from .price_book import open_price_book
from .records import PRICE_OPTION, PRICE_SOURCE_OPTION, RUNS_ARGUMENT, price_given, records_of

if TYPE_CHECKING:
    from trueup.analysis.bill import Bill
    from trueup.analysis.side_by_side import ModelBill
    from trueup.catalog import PriceBook
    from trueup.schema import RunRecord


@uncollected()
def report(
    refs: list[str] = RUNS_ARGUMENT,
    out: Path = typer.Option(Path("report.html"), "-o", "--output", help="Where the page is written."),
    usd_per_hour: float | None = PRICE_OPTION,
    price_source: str = PRICE_SOURCE_OPTION,
    traffic: float | None = TRAFFIC_OPTION,
    peak: float = PEAK_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write one self-contained HTML page about one run or several."""
    from trueup.analysis.bill import make_bill
    from trueup.report.html import render
    from trueup.schema import InputError

    asked = traffic_asked(traffic, peak)

    price = price_given(usd_per_hour, price_source)
    records = records_of(refs, samples=True)
    if all_loads(records, "report"):
        from trueup.report.load_page import load_page

        page = load_page(records, load_bills_known(records, price, asked))
        _tell(out, page, records, as_json=as_json)
        return
    if asked is not None:
        raise InputError("--traffic is for loads on a server: these runs trained a model")
    bills: dict[str, Bill | None] = {}
    price_models: dict[str, tuple[ModelBill, ...]] = {}
    book = open_price_book()
    for record in records:
        try:
            bill = make_bill(record, price)
        except InputError:  # a run without a price has a report all the same, which says how to give one
            bills[record.header.id] = None
        else:
            bills[record.header.id] = bill
            price_models[record.header.id] = _under_listed_prices(bill, record, book)
    _tell(out, render(records, bills=bills, price_models=price_models), records, as_json=as_json)


def _tell(out: Path, page: str, records: list[RunRecord], *, as_json: bool) -> None:
    from trueup.report.html import write

    write(out, page)
    size = len(page.encode())
    if as_json:
        print_json({"path": str(out), "bytes": size, "runs": [record.header.id for record in records]})
    else:
        say(f"wrote {out} ({size / 1e3:,.0f} kB)")


def _under_listed_prices(bill: Bill, record: RunRecord, book: PriceBook) -> tuple[ModelBill, ...]:
    """The bill beside what it would be under each price the book has for the run; empty where it has none."""
    from trueup.analysis.asked_prices import listed_prices
    from trueup.analysis.side_by_side import as_billed, under_models

    listed = listed_prices(record, book)
    return under_models(bill, record.header, [as_billed(bill), *listed]) if listed else ()
