"""Prices as a terminal table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from rich.table import Table
from rich.text import Text

from trueup.catalog import staleness
from trueup.schema import PriceRow

from .wording import clean


def prices_table(held: Iterable[tuple[PriceRow, str]], on: date) -> Table:
    """One row a price with its origin; a missing one with the reason, an old one marked."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in ("instance", "model", "where", "an hour", "", "kind", "seen", "origin"):
        table.add_column(column, justify="right" if column == "an hour" else "left")
    for index in (0, 1, 3, 5):
        table.columns[index].no_wrap = True
    table.add_column("source", ratio=1)
    for row, origin in held:
        missing = row.amount_per_hour is None
        said = f"{row.source}: {row.reason}" if missing else row.source
        table.add_row(
            Text(row.instance, style="bold"),
            Text(row.model.replace("_", "-")),
            Text(clean(row.zone or row.region)),
            Text("–" if row.amount_per_hour is None else f"{row.amount_per_hour:.7g}"),
            Text("" if missing else row.currency),
            Text(row.kind, style="dim" if missing else ""),
            Text(_seen(row), style="yellow" if staleness(row, on) else ""),
            Text(origin),
            Text(clean(f"{said} ({row.note})" if row.note else said)),
        )
    return table


def _seen(row: PriceRow) -> str:
    if row.valid_to is not None:
        return f"{(row.valid_from or '…')[:10]} to {row.valid_to[:10]}"
    return row.as_of[:10]
