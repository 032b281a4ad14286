"""After how many runs a move has paid: for the terminal, as a picture, and as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trueup.schema.counting import counted_as

from .wording import clean, dollar_decimals, dollars, money, number

if TYPE_CHECKING:
    from trueup.analysis.breakeven import BreakEven
    from trueup.schema import Measurement

STAY, MOVE, CROSSING = "stay", "move", "crossing"  # ids of what is drawn


def breakeven_text(found: BreakEven) -> RenderableType:
    """The verdict, then what it rests on."""
    style = "bold green" if found.verdict == "pays" and found.certainty == "sure" else "bold yellow"
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for label, value, how in rows(found):
        table.add_row(Text(f"  {label}"), Text(value), Text(how, style="dim"))
    notes = [Text(clean(note), style="dim") for note in found.notes]
    return Group(Text(verdict_text(found), style=style), Text(), table, *([Text()] if notes else []), *notes)


def verdict_text(found: BreakEven) -> str:
    """From which run on the move pays, with the interval; or that it does not and why. Where it is not sure,
    that comes first."""
    move = f"moving from {clean(found.a)} to {clean(found.b)}"
    means = _by_the_means(found)
    if found.certainty == "no interval":
        return f"no verdict on {move}: {clean(_why_no_interval(found))}; by the means alone it {means}"
    if found.certainty == "not sure":
        best = found.at_least.value
        text = f"not sure whether {move} pays: by the means it {means}"
        text += f"; at the best after {counted_as(number(best), 'run')}" if best is not None else ""
        return text if found.runs.value is None else f"{text}, and it may never pay"
    if found.runs.value is None:
        return f"{move} never pays: {clean(found.runs.reason)}"
    return f"{move} {means}"


def _by_the_means(found: BreakEven) -> str:
    if found.runs.value is None or found.whole_runs is None:
        return f"does not pay: {clean(found.runs.reason)}"
    first = f"run {found.whole_runs:,}" if found.whole_runs else "the first run"
    text = f"pays from {first} on: the costs are equal after {number(found.runs.value)}"
    if found.runs.ci is not None:
        low, high = (number(end) for end in found.runs.ci)
        text += f" (95% interval {low} to {high})"
    return text


def _why_no_interval(found: BreakEven) -> str:
    return found.saving.method.partition("; no interval: ")[2] or "the saving has no interval"


def rows(found: BreakEven) -> Iterator[tuple[str, str, str]]:
    """Label, value, and how it is known."""
    for label, one in (
        (f"a run at {clean(found.a)}", found.cost_a),
        (f"a run at {clean(found.b)}", found.cost_b),
        ("saved with each run", found.saving),
        ("one-off cost of the move", found.one_off),
    ):
        yield label, money(one), _how(one)


def _how(one: Measurement) -> str:
    text = f"{one.kind}: {clean(one.method)}"
    if one.ci is not None:
        decimals = dollar_decimals(one.value or 0.0)
        low, high = (dollars(end, decimals).replace("$", "") for end in one.ci)
        text += f" (95% interval {low} to {high}, {clean(one.ci_method)})"
    return text


def picture(found: BreakEven, prefix: str = "breakeven") -> str:
    """Cost so far over runs, of staying and of moving, as inline SVG; where they cross is marked."""
    from trueup.analysis.breakeven import cost_lines

    from .svg import ACCENT, INK, MUTED, SOFT, Canvas

    lines = cost_lines(found)
    currency = found.one_off.unit
    canvas = Canvas(prefix)
    if found.runs.ci is not None and found.runs.ci[0] < lines.runs[1]:
        canvas.span(*found.runs.ci, SOFT, label="95% interval")
    canvas.line(lines.runs, lines.stay, MUTED, label=f"stay at {_short(found.a)}", name=STAY)
    canvas.line(lines.runs, lines.move, ACCENT, label=f"move to {_short(found.b)}", name=MOVE)
    if lines.crossing is not None:
        runs, cost = lines.crossing
        equal = f"equal after {counted_as(number(runs), 'run')}"
        canvas.marks([runs], [cost], INK, size=6, label=equal, name=CROSSING)
    canvas.x.low, canvas.x.high = lines.runs
    canvas.y.low, canvas.y.high = 0.0, max(*lines.stay, *lines.move) * 1.05 or 1.0
    canvas.x_name = "full runs"
    canvas.y_name = f"cost so far, {'$' if currency == 'USD' else currency}"
    return canvas.svg(verdict_text(found))


def _short(label: str, most: int = 20) -> str:
    text = clean(label)
    return text if len(text) <= most else text[: most - 1] + "…"


def page(found: BreakEven) -> str:
    """One self-contained page: the verdict, the picture, and what they rest on."""
    from markupsafe import Markup

    from .html import environment

    return (
        environment()
        .get_template("breakeven.html")
        .render(
            found=found,
            verdict=verdict_text(found),
            rows=list(rows(found)),
            svg=Markup(picture(found)),  # ours; text from data in it is escaped where it is made
        )
    )
