"""The list of runs, in as many columns as the terminal is wide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from .terminal import state_text
from .wording import clean, date, dollars, duration, number

if TYPE_CHECKING:
    from .views import SummaryView

COLUMNS = ("run", "name", "state", "started, UTC", "took", "model", "device", "tokens", "$ per million")
LEFT_OUT_FIRST = ("device", "model", "tokens", "took", "started, UTC", "$ per million")
NAME_CELLS = 16  # a longer name is cut before a column is left out
_RIGHT = ("took", "tokens", "$ per million")
_GAP = 2


def runs_table(summaries: Iterable[SummaryView]) -> RenderableType:
    """The list of runs, in the order given."""
    rows = [_cells(row) for row in summaries]
    return _Runs(rows) if rows else Text("no runs yet: trueup train RECIPE makes one")


class _Runs:
    """A line for each run: where all columns do not fit, those go that say least, and it says which."""

    def __init__(self, rows: list[dict[str, Text]]) -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, name_cells = self._that_fit(options.max_width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim", pad_edge=False)
        for column in columns:
            right = column in _RIGHT
            table.add_column(
                column,
                justify="right" if right else "left",
                no_wrap=True,
                max_width=name_cells if column == "name" else None,
                overflow="ellipsis" if column == "name" else "fold",
            )
        for row in self.rows:
            table.add_row(*(row[column] for column in columns))
        yield table
        if gone := [column for column in COLUMNS if column not in columns]:
            told = ", ".join(column.partition(",")[0] for column in gone)
            yield Text(f"left out for width: {told}", style="dim")

    def _that_fit(self, width: int) -> tuple[list[str], int]:
        """The columns, and the cells that are left for the name."""
        needed = {
            column: max(len(column), *(row[column].cell_len for row in self.rows)) + _GAP
            for column in COLUMNS
        }
        columns = list(COLUMNS)
        for least in LEFT_OUT_FIRST:
            left = width + _GAP - sum(needed[column] for column in columns if column != "name") - _GAP
            if left >= min(needed["name"] - _GAP, NAME_CELLS):
                break
            columns.remove(least)
        left = width - sum(needed[column] for column in columns if column != "name")
        return columns, max(min(left, needed["name"] - _GAP), len("name"))


def _cells(row: SummaryView) -> dict[str, Text]:
    tokens, cost = _tokens_and_cost(row)
    return {
        "run": Text(clean(row.id), style="bold"),
        "name": Text(clean(row.name)),
        "state": state_text(row.state),
        "started, UTC": Text(date(row.started_at).removesuffix(" UTC")),
        "took": Text(duration(row.wall_s) if row.wall_s is not None else "–"),
        "model": Text(clean(row.model or "–")),
        "device": Text(clean(row.device or "–")),
        "tokens": Text(tokens),
        "$ per million": Text(cost),
    }


def _tokens_and_cost(row: SummaryView) -> tuple[str, str]:
    """Useful tokens of a training run, output tokens of a load; a dash for what is not known."""
    tokens, usd, what = row.useful_tokens, row.usd_per_million_useful_tokens, "useful"
    if tokens is None and row.output_tokens is not None:
        tokens, usd, what = row.output_tokens, row.usd_per_million_output_tokens, "output"
    return f"{number(tokens)} {what}" if tokens is not None else "–", dollars(usd) if usd is not None else "–"
