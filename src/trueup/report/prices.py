"""Prices as a terminal table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from rich.console import Group
from rich.table import Table
from rich.text import Text

from trueup.catalog import staleness
from trueup.schema import PriceRow

from .wording import clean


def prices_table(held: Iterable[tuple[PriceRow, str]], on: date | None) -> Group:
    """One row a price; one too old on the day `on` is marked. Below, who says so, and why there is none."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    columns = ("instance", "model", "where", "an hour", "kind", "seen", "origin", "source")
    for column in columns:
        table.add_column(
            column, justify="right" if column == "an hour" else "left", no_wrap=column != "where"
        )
    sources: dict[str, int] = {}
    for row, origin in held:
        number = sources.setdefault(_source(row), len(sources) + 1)
        missing = row.amount_per_hour is None
        table.add_row(
            Text(clean(row.instance), style="bold"),
            Text(row.model.replace("_", "-")),
            Text(clean(row.zone or row.region)),
            Text("–" if row.amount_per_hour is None else f"{row.amount_per_hour:.10g} {row.currency}"),
            Text(row.kind, style="dim" if missing else ""),
            Text(f"{_seen(row)}, stale", style="yellow") if on and staleness(row, on) else Text(_seen(row)),
            Text(origin),
            Text(f"[{number}]"),
        )
    return Group(table, Text(), *(Text(f"[{number}] {said}") for said, number in sources.items()))


def _source(row: PriceRow) -> str:
    said = f"{row.source}: {row.reason}" if row.amount_per_hour is None else row.source
    return clean(f"{said} ({row.note})" if row.note else said)


def _seen(row: PriceRow) -> str:
    if row.valid_to is not None:
        return f"{(row.valid_from or '…')[:10]} to {row.valid_to[:10]}"
    return row.as_of[:10]
