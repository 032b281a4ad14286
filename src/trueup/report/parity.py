"""A comparison of two sides for the terminal: the verdict, where they first part, the worst outputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .wording import clean

if TYPE_CHECKING:
    from trueup.analysis.parity import Parity
    from trueup.schema.parity import Compared, Place, SideFacts

ROWS = 15
NAMES = 6
SIDES = {"a": "A", "b": "B", "both": "A and B"}


def parity_text(parity: Parity, *, rows: int = ROWS) -> RenderableType:
    """`rows` of the worst outputs are shown."""
    parts: list[RenderableType] = [_sides(parity), Text(), *_verdict(parity), Text()]
    if not parity.identical:
        parts.append(_table(parity, rows))
        hidden = len(parity.compared) - rows
        if hidden > 0:
            parts.append(Text(f"and {hidden:,} more, nearer than these; --json has them all", style="dim"))
    parts.extend(_left_out(parity))
    return Group(*parts)


def _sides(parity: Parity) -> RenderableType:
    batch = parity.batch
    weights = "the same weights" if parity.same_weights else "different weights"
    return Group(
        Text(f"A  {_side(parity.a)}"),
        Text(f"B  {_side(parity.b)}"),
        Text(
            f"batch {batch.digest[:12]}: {clean(batch.source)}, {batch.rows} x {batch.width}, "
            f"{batch.tokens:,} tokens in {batch.segments} examples, {batch.supervised:,} supervised; "
            f"{weights}",
            style="dim",
        ),
    )


def _side(side: SideFacts) -> str:
    return clean(
        f"{side.subject}: {side.model}, {side.weights} · {side.device} ({side.device_name}), "
        f"{side.threads} threads · {side.precision} · {side.attention} · compile {side.compile} · "
        f"torch {side.torch_version}"
    )


def _verdict(parity: Parity) -> list[RenderableType]:
    limit = f"tolerance {_figure(parity.tolerance)}"
    if parity.gradient_tolerance != parity.tolerance:
        limit += f", of gradients {_figure(parity.gradient_tolerance)}"
    limit += f" ({parity.tolerance_reason})"
    count = len(parity.compared)
    if parity.identical:
        return [Text(f"identical: all {count:,} outputs are equal to the last bit; {limit}", style="green")]
    if parity.verdict == "within":
        return [Text(f"within: all {count:,} outputs; {limit}", style="green")]
    lines: list[RenderableType] = [
        Text(f"over: {parity.over:,} of {count:,} outputs; {limit}", style="red"),
        Text.assemble(
            "first over it in the order of execution, so look there: ",
            (clean(parity.first_over or ""), "bold"),
        ),
    ]
    first = next(one for one in parity.compared if one.label == parity.first_over)
    lines.append(Text(f"  {_words(first)}"))
    return lines


def _words(one: Compared) -> str:
    if one.nonfinite is not None:
        found = f"not a finite number on {SIDES[one.nonfinite]}"
    else:
        found = f"relative error {_figure(one.relative)}, at most {_figure(one.max_abs)}"
    if one.worst is None:
        return f"{found}; {one.how}"
    there = f"A {_figure(one.worst.a)}, B {_figure(one.worst.b)}"
    return f"{found}; {one.how}; worst at {_place(one.worst)}: {there}"


def _table(parity: Parity, rows: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("output", "kind", "relative", "largest", "worst at"):
        table.add_column(name, justify="right" if name in ("relative", "largest") else "left", no_wrap=True)
    for one in parity.compared[:rows]:
        table.add_row(
            Text(clean(one.name)),
            one.kind,
            _figure(one.relative),
            _figure(one.max_abs),
            Text(_place(one.worst) if one.worst else "–"),
            style="red" if parity.is_over(one) else None,
        )
    return table


def _place(place: Place) -> str:
    if place.row is None:
        return f"[{', '.join(map(str, place.index))}]"
    text = f" {clean(repr(place.text))}" if place.text is not None else ""
    return f"row {place.row}, column {place.column}{text}"


def _left_out(parity: Parity) -> list[Text]:
    lines = []
    for letter, side in (("A", parity.a), ("B", parity.b)):
        lines.append(Text(f"softmax of {letter}: {clean(side.softmax)}", style="dim"))
    reasons: dict[str, list[str]] = {}
    for one in parity.not_compared:
        label = one.name if one.kind == "module" else f"{one.name} ({one.kind})"
        reasons.setdefault(one.reason, []).append(label)
    for reason, names in reasons.items():
        more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
        shown = clean(", ".join(names[:NAMES]))
        lines.append(Text(f"not compared, {clean(reason)}: {shown}{more}", style="dim"))
    return lines


def _figure(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3g}"
