"""Bills of load runs, which are asked for together with others or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from trueup.schema import InputError

from .output import print_json, print_rich

if TYPE_CHECKING:
    from trueup.analysis.load_bill import LoadBill, Traffic
    from trueup.schema import Price, RunRecord

TRAFFIC_OPTION = typer.Option(
    None, "--traffic", help="Requests a day like the load's: what they need and cost a month."
)
PEAK_OPTION = typer.Option(1.0, "--peak", help="With --traffic: the busiest rate over the mean.")


def all_loads(records: Sequence[RunRecord], what: str) -> bool:
    """Whether the runs are loads, all of them. InputError where some are and some trained a model: their
    figures have nothing in common."""
    loads = [record for record in records if record.kind == "load"]
    if loads and len(loads) < len(records):
        trained = next(record for record in records if record.kind == "train")
        raise InputError(
            f"run {loads[0].id} ({loads[0].name}) is a load on a server, run {trained.id} ({trained.name}) "
            f"trained a model: what they cost is not of the same thing; {what} them apart"
        )
    return bool(loads)


def traffic_asked(requests_per_day: float | None, peak: float) -> Traffic | None:
    from trueup.analysis.load_bill import traffic_given

    if requests_per_day is None:
        if peak != 1.0:
            raise InputError("--peak is for --traffic: give the requests a day")
        return None
    return traffic_given(requests_per_day, peak)


def load_bills(records: Sequence[RunRecord], price: Price | None, traffic: Traffic | None) -> list[LoadBill]:
    from trueup.analysis.load_bill import make_load_bill

    return [make_load_bill(record, price, traffic=traffic) for record in records]


def load_bills_known(
    records: Sequence[RunRecord], price: Price | None, traffic: Traffic | None
) -> dict[str, LoadBill | None]:
    """By run; None of one without a price, which no page can do without words on."""
    return {
        record.id: load_bills([record], price, traffic)[0] if price or record.header.price else None
        for record in records
    }


def bill_or_none(record: RunRecord, requests_per_day: float | None, peak: float) -> LoadBill | None:
    """None where the run has no price: that is no mistake unless a traffic is to be priced."""
    traffic = traffic_asked(requests_per_day, peak)
    if record.header.price is None and traffic is None:
        return None
    return load_bills([record], None, traffic)[0]


def print_load_bills(
    records: Sequence[RunRecord],
    price: Price | None,
    traffic: Traffic | None,
    asked: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Each load's bill. `asked`: options that a load's bill knows nothing of, refused where given."""
    if given := [option for option, value in asked.items() if value not in (None, False, [])]:
        raise InputError(f"{given[0]} is for training runs: a load's bill has its own lines, and no budget")
    bills = load_bills(records, price, traffic)
    if as_json:
        documents = [bill.model_dump(mode="json") for bill in bills]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    from trueup.report.load import load_bill_text

    for number, (bill, record) in enumerate(zip(bills, records, strict=True)):
        if number:
            print_rich("")
        print_rich(load_bill_text(bill, record))
