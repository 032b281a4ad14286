"""A load run on the terminal: what a token cost, latencies beside their formulas, what the server told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trueup.analysis.load_bill import load_notes
from trueup.analysis.load_metrics import MEMORY
from trueup.analysis.load_names import FORMULAS

from . import headline
from .load_words import costs_words, month_words, requests_words, server_words, tokens_words
from .terminal import price_words, run_title, waterfall, why_it_ended
from .wording import clean, interval, quantity, quantity_within, words

if TYPE_CHECKING:
    from trueup.analysis.load_bill import LoadBill, Monthly
    from trueup.schema import Measurement, RunRecord

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
STATISTICS = ("p50_s", "p90_s", "p99_s", "max_s", "mean_s")


def load_text(record: RunRecord, bill: LoadBill | None) -> RenderableType:
    """Everything about one load that fits a terminal. Without a bill, what is known without a price."""
    found = record.measurements
    parts: list[RenderableType] = [run_title(record), *why_it_ended(record)]
    if bill is not None:
        parts += [*costs_text(bill.costs), Text(f"price: {price_words(bill.price)}", style="dim")]
    parts += [Text(), latency_table(found), Text()]
    parts += [Text(line) for line in requests_words(record)]
    parts += [Text(line) for line in (*tokens_words(found), *server_words(found))]
    parts += _given_and_told(found)
    if bill is not None:
        parts += [Text(), waterfall(bill.lines, bill.wall_s, bill.total_usd)]
    if bill is not None and bill.monthly is not None:
        parts += [Text(), *monthly_text(bill.monthly)]
    parts += [Text(), Text(f"not known: {headline.unavailable_text(found)}", style="dim")]
    notes = bill.notes if bill is not None else load_notes(record)
    parts += [Text(f"note: {clean(note)}", style="yellow") for note in notes]
    return Group(*parts)


def load_bill_text(bill: LoadBill, record: RunRecord) -> RenderableType:
    """The bill alone: the costs, how they are split, the lines, the month."""
    parts: list[RenderableType] = [run_title(record), *why_it_ended(record), *costs_text(bill.costs)]
    parts += [Text(f"price: {price_words(bill.price)}", style="dim"), Text()]
    parts.append(waterfall(bill.lines, bill.wall_s, bill.total_usd))
    if bill.monthly is not None:
        parts += [Text(), *monthly_text(bill.monthly)]
    known = " · ".join(f"{kind} {count}" for kind, count in bill.known.items() if count)
    parts += [Text(), Text(known, style="dim")]
    parts += [Text(f"note: {clean(note)}", style="yellow") for note in bill.notes]
    return Group(*parts)


def costs_text(costs: Mapping[str, Measurement]) -> list[Text]:
    """One line for each way of splitting the dollars, the first in bold."""
    lines = []
    for number, (_, told) in enumerate(costs_words(costs)):
        style = "dim" if told.startswith("no ") else "bold green" if number == 0 else ""
        lines.append(Text(told, style=style))
    return lines


def latency_table(found: Mapping[str, Measurement]) -> Table:
    """Percentiles, and beside them the formula; a p99 that too few values allow says how many there are."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("")
    for name in ("p50", "p90", "p99", "max", "mean", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("formula")
    for key, label in LATENCIES.items():
        figures = [found.get(f"{key}_{statistic}") for statistic in STATISTICS]
        cells = [_cell(figure, f"{key}_{name}") for figure, name in zip(figures, STATISTICS, strict=True)]
        some = next((one for one in figures if one is not None), None)
        n = "" if some is None or some.n is None else f"{some.n:,}"
        how = FORMULAS[key] if some is None or some.value is None else some.method
        table.add_row(Text(label), *cells, Text(n), Text(clean(how), style="dim"))
    return table


def monthly_text(month: Monthly) -> list[Text]:
    first, *rest = month_words(month)
    return [Text(first, style="bold"), *(Text(line, style="dim") for line in rest)]


def _cell(figure: Measurement | None, name: str) -> Text:
    if figure is None or figure.value is None:
        return Text("–", style="dim")
    return Text(quantity(figure.value, figure.unit, name))


def _given_and_told(found: Mapping[str, Measurement]) -> Sequence[RenderableType]:
    """Memory by owner, what the server told and what a plan had said; and what a quality gate found."""
    parts: list[RenderableType] = []
    for title, names in (
        ("memory by owner", [name for name in found if MEMORY.fullmatch(name)]),
        ("quality", [name for name in found if name.startswith("quality_")]),
    ):
        known = [(name, found[name]) for name in names if found[name].value is not None]
        if not known:
            continue
        table = Table.grid(padding=(0, 2))
        for name, one in known:
            text = quantity_within(one.value or 0.0, one.ci, one.unit, name)
            if one.ci is not None:
                text += f" ({interval(one.ci, one.unit, name)})"
            label = words(name.removesuffix("_bytes"))
            table.add_row(Text(f"  {label}"), Text(text), Text(one.kind, style="dim"))
        parts += [Text(title, style="bold"), table]
    return parts
