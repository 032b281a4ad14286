"""A run beside its repetition, on the terminal: what deviates, and what else is different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .compare import difference_rows, short
from .wording import clean

if TYPE_CHECKING:
    from trueup.analysis.compare_reproduction import Repeated, Reproduction
    from trueup.schema import Measurement

_STYLES = {"identical": "green", "within": "green", "outside": "red"}


def reproduction_text(found: Reproduction) -> RenderableType:
    """The summary, what deviates beside all that is different around the runs, then every measurement."""
    parts: list[RenderableType] = [
        Text(f"run {found.again} beside run {found.original}", style="bold"),
        Text(clean(found.summary)),
        *(Text(f"note: {clean(note)}", style="yellow") for note in found.notes),
    ]
    far = [row for row in found.measurements if row.deviates]
    if far:
        parts += [Text(), Text("deviate by more than 5 %", style="bold"), _table(far)]
        parts += difference_rows(
            "what could explain it: all that is different around the runs", found.environment
        )
        parts += difference_rows("settings that differ", found.settings)
        if not found.environment and not found.settings:
            parts.append(Text("  nothing that was recorded is different around the runs", style="dim"))
    rest = [row for row in found.measurements if not row.deviates and _is_known(row)]
    parts += [Text(), Text("the others", style="bold"), _table(rest)] if rest else []
    unknown = sum(not _is_known(row) for row in found.measurements)
    if unknown:
        parts.append(Text(f"{unknown} measurements are unavailable in both; --json says why", style="dim"))
    return Group(*parts)


def _is_known(row: Repeated) -> bool:
    return row.then.value is not None or row.now.value is not None


def _table(rows: Sequence[Repeated]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in ("measurement", "then", "now", "deviation", "expected", ""):
        right = column in ("then", "now", "deviation")
        table.add_column(column, justify="right" if right else "left", no_wrap=column in ("measurement", ""))
    for row in rows:
        table.add_row(
            Text(clean(row.name)),
            Text(_value(row.name, row.then)),
            Text(_value(row.name, row.now)),
            Text(_deviation(row)),
            Text(_expected(row), style="dim"),
            Text(row.verdict, style=_STYLES.get(row.verdict, "dim")),
        )
    return table


def _value(name: str, figure: Measurement) -> str:
    return "–" if figure.value is None else short(figure.value, figure.unit, name)


def _deviation(row: Repeated) -> str:
    if row.deviation is None:
        return "–"
    points = " points" if row.name.endswith("_share") else " %"
    return f"{100 * row.deviation:+.1f}{points}"


def _expected(row: Repeated) -> str:
    if row.expected is None or row.expected_from is None:
        return ""
    within = ", within run" if row.expected_from.startswith("within_run") else ""
    low, high = (short(end, row.then.unit, row.name) for end in row.expected)
    return f"{low} to {high}{within}"
