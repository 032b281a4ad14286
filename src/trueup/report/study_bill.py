"""The bill of several runs, and bills under several price models, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trueup.schema.counting import counted

from . import headline
from .terminal import budget_line, waterfall
from .wording import clean, dollar_decimals, dollars, duration, money, number

if TYPE_CHECKING:
    from trueup.analysis.side_by_side import ModelBill
    from trueup.analysis.study_bill import StudyBill


def study_text(study: StudyBill) -> RenderableType:
    """One row for each run, their sum, and where the money of all of them went."""
    all_in = study.usd_per_million_useful_tokens
    states = ", ".join(f"{count} {state}" for state, count in study.states.items())
    count = len(study.runs)
    parts: list[RenderableType] = [
        Text.assemble((f"{counted(count, 'run')} together", "bold"), f" · {states}")
    ]
    if all_in.value is None:
        parts.append(Text(f"no dollars per million useful tokens: {clean(all_in.reason)}"))
    else:
        cost = (dollars(all_in.value), "bold green")
        parts.append(Text.assemble(cost, " per million useful tokens, all in, over all runs"))
    if study.only_quoted:
        parts.append(Text(headline.ONLY_QUOTED, style="yellow"))
    if study.budget is not None:
        parts.append(budget_line(study.budget))
    parts += [Text(), _runs(study), Text(), waterfall(study.lines, study.wall_s, study.total.value or 0.0)]
    parts.append(Text())
    if study.unfinished.value:
        spent = dollars(study.unfinished.value)
        parts.append(Text(f"{spent} of it was spent on runs that failed or were interrupted", style="yellow"))
    if energy := headline.energy_text(study.energy):
        parts.append(Text(energy, style="dim"))
    parts += [Text(clean(note), style="dim") for note in study.notes]
    return Group(*parts)


def models_text(rows: Sequence[ModelBill]) -> RenderableType:
    """Price models side by side. What a figure rests on, and why one is missing, is under the table."""
    table = _table("price model", "an hour", "total", "per million useful tokens", "kind")
    for column in table.columns[1:4]:
        column.justify = "right"
    under: list[RenderableType] = []
    for row in rows:
        style = None if row.total.value is not None else "dim"
        cost = row.usd_per_million_useful_tokens
        cells = (money(one) for one in (row.per_hour, row.total, cost))
        table.add_row(Text(clean(row.model)), *map(Text, cells), Text(row.total.kind), style=style)
        why = row.total.reason if row.total.value is None else row.total.method
        under.append(Text(f"{clean(row.model)}: {clean(why)}", style="dim"))
        under += [Text(f"{clean(row.model)}: {clean(note)}", style="yellow") for note in row.notes]
    return Group(Text("under other prices", style="bold"), table, Text(), *under)


def _runs(study: StudyBill) -> Table:
    decimals = dollar_decimals(study.total.value or 0.0)
    table = _table("run", "name", "state", "took", "$", "useful tokens", "$ per million")
    for column in table.columns[3:]:
        column.justify = "right"
    for run in study.runs:
        table.add_row(
            Text(clean(run.run), style="bold"),
            Text(clean(run.name)),
            Text(run.state, style="red" if run.state == "failed" else ""),
            Text(duration(run.wall_s)),
            Text(money(run.total, decimals).replace("$", "")),
            Text(number(run.useful_tokens)),
            Text(money(run.usd_per_million_useful_tokens)),
        )
    table.add_row(
        *(Text(text, style="bold") for text in ("together", "", "", duration(study.wall_s))),
        Text(money(study.total, decimals).replace("$", ""), style="bold"),
        Text(number(study.useful_tokens), style="bold"),
        Text(money(study.usd_per_million_useful_tokens), style="bold"),
    )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
