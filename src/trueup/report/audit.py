"""An audit for the terminal: how many claims stand, then each with what was said and what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .wording import clean

if TYPE_CHECKING:
    from trueup.schema.claim import Audit, AuditedClaim, Verdict

_STYLES: dict[Verdict, str] = {
    "follows": "green",
    "holds": "green",
    "possible": "green",
    "does not follow": "red",
    "does not hold": "red",
    "impossible": "bold red",
    "implausible": "yellow",
    "cannot be decided": "yellow",
}


def audit_text(audit: Audit) -> RenderableType:
    parts: list[RenderableType] = [Text(clean(audit.title), style="bold")]
    if audit.source:
        parts.append(Text(clean(audit.source), style="dim"))
    parts += [_headline(audit), Text(), _table(audit)]
    sources = dict.fromkeys(source for one in audit.claims for source in one.sources)
    if sources:
        parts += [Text(), Text("held against:", style="dim")]
        parts += [Text(f"  {clean(source)}", style="dim") for source in sources]
    return Group(*parts)


def _headline(audit: Audit) -> Text:
    count = len(audit.claims)
    text = Text(f"{count} claim{'s' if count != 1 else ''}: ")
    counts = audit.counts
    shown = [verdict for verdict in _STYLES if verdict in counts]
    for verdict in shown:
        text.append(f"{counts[verdict]} ")
        text.append(_with_number(verdict, counts[verdict]), style=_STYLES[verdict])
        text.append("" if verdict == shown[-1] else " · ")
    return text


def _with_number(verdict: Verdict, count: int) -> str:
    if count == 1:
        return verdict
    plurals = {"follows": "follow", "holds": "hold"}
    return plurals.get(verdict, verdict.replace("does not", "do not"))


def _table(audit: Audit) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("claim", overflow="fold")
    table.add_column("says", max_width=30, overflow="fold")
    table.add_column("found", overflow="fold")
    for one in audit.claims:
        table.add_row(
            Text(one.verdict, style=_STYLES[one.verdict]),
            Text(clean(one.name)),
            Text(clean(one.said)),
            _found(one),
        )
    return table


def _found(one: AuditedClaim) -> Text:
    text = Text(clean(one.reason))
    if one.note:
        text.append(f" [{clean(one.note)}]", style="dim")
    return text
