"""A comparison on the terminal: verdict first, one table, then what could explain a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trueup.analysis.load_metrics import PER_MONTH, PER_MONTH_PART
from trueup.analysis.load_names import why_no_interval
from trueup.schema.counting import counted_as

from .wording import clean, interval, is_share, number, quantity, quantity_within

if TYPE_CHECKING:
    from trueup.analysis.comparable import Difference
    from trueup.analysis.compare import Comparison, GroupResult
    from trueup.analysis.compare_findings import Finding
    from trueup.schema import Measurement

DIFFERENCES_SHOWN = 12
_LEFT_OUT_SHOWN = 6
_GATHERED_FROM, _KEYS_SHOWN = 3, 4  # rows, or differences, of which some groups' records do not speak
_EVEN = 0.05  # by so much two digits are rounded at most
_CHARACTERS = 60  # of a value, of a run's reason
_GOOD = ("cheaper", "faster", "steadier", "less energy", "fewer tokens", "better")
_SAID_BY_THE_ROW = (
    *(f" per million {what}tokens" for what in ("useful ", "output ", "input ", "")),
    *(" per month", " requests/s", " tokens/s", " tokens"),
)
_NEITHER = ("the same", "not enough runs", "no verdict")


def comparison_text(found: Comparison) -> RenderableType:
    """Everything a comparison found that fits a terminal."""
    parts: list[RenderableType] = [Text(clean(line), style="bold") for line in found.headline]
    parts += [Text(clean(line)) for line in (found.front_words, *found.stated)]
    parts += [Text(), _groups(found.groups), Text(), _table(found)]
    parts += [Text(line, style="dim") for line in unknown_words(found)]
    parts += [Text(f"note: {clean(note)}", style="yellow") for note in found.notes]
    parts += _left_out(found.groups)
    for title, differences in (
        ("compared though they differ in", found.allowed),
        ("settings that differ", found.compared),
        ("what else differs and could explain it", found.environment),
    ):
        parts += difference_rows(title, differences)
    return Group(*parts)


def value_text(figure: Measurement, name: str) -> str:
    """A figure, give or take half its 95% interval, or with its ends where they are not as far; `within run`
    where that is of one run's steps or requests."""
    if figure.value is None:
        return "–"
    text = short_text(quantity_within(figure.value, figure.ci, figure.unit, name))
    if figure.ci is not None:
        within = " within run" if (figure.ci_method or "").startswith("within_run") else ""
        text += f" {_reach(figure, figure.ci, name)}{within}"
    return text if figure.kind in ("measured", "derived") else f"{text}, {figure.kind}"


def cell_text(group: GroupResult, metric: str) -> str:
    """The group's figure; a month's bill with what it is not to be read without."""
    text = value_text(group.figures[metric], metric)
    if metric not in (PER_MONTH, PER_MONTH_PART) or not group.warnings or not _known(group, metric):
        return text
    return clean(f"{text}, {', '.join(group.warnings)}")


def _reach(figure: Measurement, ci: tuple[float, float], name: str) -> str:
    """± of a figure above 0 whose interval goes as far up as down, but for what is rounded; else the ends."""
    low, high = ci
    value = figure.value or 0.0
    plain = figure.unit != "1" or not is_share(name)  # of a share in per cent ± would read as points
    if plain and low > 0 and math.isclose(high - value, value - low, rel_tol=_EVEN):
        return f"±{number(100 * (high - low) / 2 / value, 2)} %"
    return f"({short_text(interval(ci, figure.unit, name))})"


def short(value: float, unit: str, name: str) -> str:
    """The value in its unit, but for what its row says already, such as tokens/s."""
    return short_text(quantity(value, unit, name))


def short_text(text: str) -> str:
    for said in _SAID_BY_THE_ROW:
        text = text.removesuffix(said)
    return text


def ratio_text(ratio: Measurement) -> str:
    """1.10 (1.07–1.13)"""
    if ratio.value is None:
        return "–"
    low_high = f" ({ratio.ci[0]:.3g}–{ratio.ci[1]:.3g})" if ratio.ci is not None else ""
    return f"{ratio.value:.3g}{low_high}"


def verdict_text(found: Finding) -> str:
    runs = counted_as(f"{found.more_runs:,}", "more run") if found.more_runs is not None else ""
    more = f": about {runs} of each" if runs else ""
    return f"{found.verdict.removesuffix(' runs')}{more}"


def group_line(group: GroupResult) -> str:
    """How many runs of which seeds, on what, at which price."""
    runs = "1 run" if len(group.runs) == 1 else f"{len(group.runs)} runs"
    seeds = f"seed{'' if len(group.seeds) == 1 else 's'} {', '.join(group.seeds)}"
    return clean(f"{runs}, {_clipped(seeds)} · {_clipped(group.platform)} · {group.price}")


def _groups(groups: Sequence[GroupResult]) -> Table:
    table = Table.grid(padding=(0, 2))
    for group in groups:
        table.add_row(Text(clean(group.name), style="bold"), Text(group_line(group), style="dim"))
    return table


def _table(found: Comparison) -> Table:
    """A line for each figure: the reference's, then each other group's with its ratio and verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("")
    for group in found.groups:
        table.add_column(Text(clean(group.name)), justify="right")
        if group.name != found.reference:
            table.add_column(Text(f"over {clean(found.reference)}"))
            table.add_column("")
    findings = {(one.metric, one.group): one for one in found.findings}
    for row in found.rows:
        if not known_to_any(found, row.metric):
            continue
        cells = [Text(clean(row.label))]
        for group in found.groups:
            cells.append(Text(cell_text(group, row.metric)))
            if group.name != found.reference:
                one = findings[row.metric, group.name]
                cells += [Text(ratio_text(one.ratio)), Text(verdict_text(one), style=_style(one))]
        table.add_row(*cells)
    return table


def known_to_any(found: Comparison, metric: str) -> bool:
    return any(_known(group, metric) for group in found.groups)


def _known(group: GroupResult, metric: str) -> bool:
    return group.figures[metric].value is not None


def unknown_words(found: Comparison) -> list[str]:
    """Which figures no group has and why, and where one group lacks what another has, or an interval."""
    rows: dict[tuple[str, str | None], list[str]] = {}  # by whose they are and the reason
    bare: dict[tuple[str, str], list[str]] = {}
    for row in found.rows:
        lacking = [group for group in found.groups if not _known(group, row.metric)]
        if len(lacking) == len(found.groups):
            rows.setdefault(("", lacking[0].figures[row.metric].reason), []).append(row.label)
        else:
            for group in lacking:
                of = f" of {group.name}"
                rows.setdefault((of, group.figures[row.metric].reason), []).append(row.label)
        for group in found.groups:
            why = why_no_interval(group.figures[row.metric])
            if why is not None:
                bare.setdefault((group.name, why), []).append(row.label)
    lines = [f"no {_some_of(labels, of)}{of}: {why}" for (of, why), labels in rows.items()]
    lines += [f"no interval of {_some_of(labels, of)} of {of}: {why}" for (of, why), labels in bare.items()]
    return [clean(line) for line in lines]


def _some_of(labels: Sequence[str], of: str) -> str:
    """All that no group has, for they have no row; of what has one, the first."""
    if not of or len(labels) <= _GATHERED_FROM:
        return "; ".join(labels)
    return f"{'; '.join(labels[:_GATHERED_FROM])} and {len(labels) - _GATHERED_FROM} more"


def _style(found: Finding) -> str:
    if found.verdict in _NEITHER:
        return "dim"
    return "green" if found.verdict in _GOOD else "red"


def _left_out(groups: Sequence[GroupResult]) -> list[Text]:
    gone = [one for group in groups for one in group.left_out]
    lines = [
        Text(clean(f"left out: {one.id} ({one.name}) {one.state}: {_clipped(one.reason or 'no reason')}"))
        for one in gone[:_LEFT_OUT_SHOWN]
    ]
    if len(gone) > len(lines):
        lines.append(Text(f"left out: {len(gone) - len(lines)} more that did not finish; --json has them"))
    return lines


def difference_rows(title: str, differences: Sequence[Difference]) -> list[RenderableType]:
    if not differences:
        return []
    table = Table.grid(padding=(0, 2))
    differences, gathered = gathered_differences(differences)
    for one in differences[:DIFFERENCES_SHOWN]:
        values = "; ".join(f"{_clipped(value)} in {group}" for group, value in one.values.items())
        table.add_row(Text(f"  {clean(one.key)}"), Text(clean(values), style="dim"))
    parts: list[RenderableType] = [Text(), Text(title, style="bold"), table]
    if len(differences) > DIFFERENCES_SHOWN:
        parts.append(
            Text(f"  … and {len(differences) - DIFFERENCES_SHOWN} more; --json has them", style="dim")
        )
    return parts + [Text(f"  {line}", style="dim") for line in gathered]


def gathered_differences(differences: Sequence[Difference]) -> tuple[list[Difference], list[str]]:
    """Differences but for the many of which some groups' records do not speak, and a line for these."""
    of_groups: dict[tuple[str, ...], list[Difference]] = {}
    for one in differences:
        of_groups.setdefault(one.absent, []).append(one)
    many = {groups: held for groups, held in of_groups.items() if groups and len(held) >= _GATHERED_FROM}
    lines = []
    for groups, held in many.items():
        keys = ", ".join(one.key for one in held[:_KEYS_SHOWN])
        more = f" and {len(held) - _KEYS_SHOWN} more" if len(held) > _KEYS_SHOWN else ""
        lines.append(clean(f"{len(held)} are not recorded in {', '.join(groups)}: {keys}{more}"))
    return [one for one in differences if one.absent not in many], lines


def _clipped(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
