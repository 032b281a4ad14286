"""Load runs as one self-contained page: what tokens cost, latencies with their formulas, the month's bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.analysis.load_bill import load_notes
from trueup.analysis.load_metrics import MEMORY, PER_MONTH, PER_MONTH_PART, load_metrics, themes_of
from trueup.analysis.load_names import FORMULAS, LOAD_NAMES
from trueup.analysis.names import P99_NEEDS
from trueup.schema import InputError, Measurement, RunRecord

from . import wording
from .compare import short_text
from .html import environment
from .load import LATENCIES, STATISTICS
from .load_words import costs_words, month_words, requests_words, server_words, tokens_words
from .terminal import price_words

if TYPE_CHECKING:
    from trueup.analysis.load_bill import LoadBill

Figures = Sequence[tuple[str, Measurement]]


@dataclass(frozen=True)
class LatencyRow:
    label: str
    figures: Figures  # p50, p90, p99, max, mean
    n: int | None
    formula: str


@dataclass(frozen=True)
class LoadView:
    """One load as the template sees it."""

    anchor: str
    record: RunRecord
    bill: LoadBill | None
    costs: Sequence[tuple[str, str]]
    price: str
    month: Sequence[str]
    notes: Sequence[str]
    latencies: Sequence[LatencyRow]
    said: Sequence[str]
    memory: Figures
    quality: Figures
    figures: Figures
    recipe: Sequence[tuple[str, str]]
    environment: Sequence[tuple[str, str]]


def load_page(records: Sequence[RunRecord], bills: Mapping[str, LoadBill | None]) -> str:
    """The page for these loads, in the order given; of one without a bill it says how to have one."""
    if not records:
        raise InputError("no run to report on: name at least one run")
    loads = [
        _view(f"load-{number}", record, bills.get(record.id)) for number, record in enumerate(records, 1)
    ]
    names = ", ".join(dict.fromkeys(wording.clean(record.name) for record in records))
    page = environment()
    page.globals["meaning"] = {name: facts.meaning for name, facts in LOAD_NAMES.items()}
    page.globals["p99_needs"] = P99_NEEDS
    page.globals["short"] = short_text
    themes = themes_of(_side_by_side(loads), lambda row: row.name)
    return page.get_template("load.html").render(loads=loads, themes=themes, title=names)


@dataclass(frozen=True)
class Row:
    """One figure of every load."""

    name: str
    label: str
    figures: Sequence[Measurement | None]


def _side_by_side(loads: Sequence[LoadView]) -> list[Row]:
    """What a comparison has rows for, of each load with its own interval; nothing of a single one. A verdict
    is a comparison's: `trueup compare`."""
    if len(loads) < 2:
        return []
    held = [
        {**load.record.measurements, **(load.bill.costs if load.bill else {}), **_month_of(load.bill)}
        for load in loads
    ]
    names = dict.fromkeys(name for found in held for name in found)
    return [
        Row(metric.name, metric.label, [found.get(metric.name) for found in held])
        for metric in load_metrics(names)
        if any(metric.name in found and found[metric.name].value is not None for found in held)
    ]


def _month_of(bill: LoadBill | None) -> dict[str, Measurement]:
    if bill is None or bill.monthly is None:
        return {}
    return {PER_MONTH: bill.monthly.usd_per_month, PER_MONTH_PART: bill.monthly.usd_per_month_part}


def _view(anchor: str, record: RunRecord, bill: LoadBill | None) -> LoadView:
    found = record.measurements
    return LoadView(
        anchor=anchor,
        record=record,
        bill=bill,
        costs=costs_words(bill.costs) if bill else [],
        price=price_words(bill.price) if bill else "",
        month=list(month_words(bill.monthly)) if bill and bill.monthly else [],
        notes=bill.notes if bill else load_notes(record),
        latencies=[row for key, label in LATENCIES.items() if (row := _latency(found, key, label))],
        said=[*requests_words(record), *tokens_words(found), *server_words(found)],
        memory=[(name, one) for name, one in found.items() if MEMORY.fullmatch(name)],
        quality=[(name, one) for name, one in found.items() if name.startswith("quality_")],
        figures=list(found.items()),
        recipe=list(wording.flat(record.header.recipe)),
        environment=list(wording.flat(record.header.environment)),
    )


def _latency(found: Mapping[str, Measurement], key: str, label: str) -> LatencyRow | None:
    figures = [(name, found[name]) for name in (f"{key}_{one}" for one in STATISTICS) if name in found]
    if len(figures) < len(STATISTICS):
        return None
    first = figures[0][1]
    return LatencyRow(label, figures, first.n, first.method or FORMULAS[key])
