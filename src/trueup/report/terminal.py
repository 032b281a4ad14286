"""Tables for the terminal. Each function gives a rich renderable: `Console().print(bill_text(bill, record))`.

Text from data goes through `Text`, never through rich's markup, and without control characters, so that a
run called `[red]` or one with an escape sequence in its name is shown as it is. Where output is not a
terminal, rich leaves colours out and the layout stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from . import headline
from .wording import (
    KIND_ORDER,
    clean,
    dollar_decimals,
    dollars,
    duration,
    interval,
    line_label,
    number,
    quantity,
    share,
    words,
)

if TYPE_CHECKING:
    from trueup.schema import Event, Measurement, RunHeader, RunRecord

    from .views import BillView, BudgetView, LineView, PriceView

BAR_CELLS = 20
USEFUL_LINES = ("useful_compute", "compute", "answering")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STATE_STYLES = {
    "finished": "green",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "yellow",
    "running": "cyan",
}
_EVENTS_SHOWN = 20


def bill_text(bill: BillView, record: RunRecord | None = None) -> RenderableType:
    """The bill: one headline, one waterfall, one line on how much of it is known.

    With the run's record the headline also says model, device and how the run ended, and the last lines say
    what could not be measured and how busy the neighbours were.
    """
    parts: list[RenderableType] = [
        _bill_title(bill, record),
        *why_it_ended(record),
        _bill_price(bill),
        Text(),
        waterfall(bill.lines, bill.wall_s, bill.total_usd),
        Text(),
    ]
    parts.append(_known_line(bill.known, record.measurements if record else {}))
    neighbours = headline.neighbours_text(record.measurements) if record else None
    more = (headline.energy_text(bill.energy), neighbours)
    parts.extend(Text(line, style="dim") for line in more if line)
    parts.extend(Text(clean(note), style="dim") for note in bill.notes)
    return Group(*parts)


def why_it_ended(record: RunRecord | None) -> list[Text]:
    """The reason, where a run did not finish: without it its bill is a riddle."""
    if record is None or record.header.state == "finished" or not record.header.reason:
        return []
    return [Text(clean(record.header.reason), style=_STATE_STYLES.get(record.header.state, ""))]


def run_text(record: RunRecord) -> RenderableType:
    """Everything about one run that fits a terminal: spans, evaluations, measurements, events, and what had
    been foretold."""
    from trueup.analysis.residual import gap_of

    from .predict import gap_text

    parts: list[RenderableType] = [run_title(record)]
    if record.header.reason:
        parts.append(Text(clean(record.header.reason), style=_STATE_STYLES.get(record.header.state, "")))
    for title, table in (
        ("spans", _spans(record)),
        ("evaluations", _evaluations(record)),
        ("measurements", _measurements(record.measurements)),
        ("choices", _choices(record.header)),
        (f"events ({len(record.events)})", _events(record.events)),
    ):
        if table.row_count:
            parts += [Text(), Text(title, style="bold"), table]
    if record.kind == "train":
        parts += [Text(), Text("foretold and measured", style="bold"), gap_text(gap_of(record))]
    hidden = len(record.events) - _EVENTS_SHOWN
    if hidden > 0:
        parts.append(Text(f"  … and {hidden} more; --json has them all", style="dim"))
    return Group(*parts)


def histogram_text(histogram: Sequence[tuple[int, int, int]]) -> RenderableType:
    """Records by length in tokens, one bar a line."""
    if not histogram:
        return Text("no lengths were recorded", style="dim")
    most = max(count for _, _, count in histogram) or 1
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    table.add_row(Text("tokens", style="dim"), Text("records", style="dim"), Text())
    for low, high, count in histogram:
        table.add_row(
            Text(f"{low:,} – {high - 1:,}" if high - 1 > low else f"{low:,}"),
            Text(f"{count:,}"),
            Text(bar(count / most, 2 * BAR_CELLS), style="cyan"),
        )
    return table


def bar(part: float, cells: int = BAR_CELLS) -> str:
    """A bar of eighths of a cell. What is more than nothing shows at least one eighth."""
    eighths = max(1 if part > 0 else 0, round(min(max(part, 0.0), 1.0) * cells * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _bill_title(bill: BillView, record: RunRecord | None) -> RenderableType:
    if record is not None:
        return run_title(record)
    left = Text.assemble((clean(bill.name), "bold"), f" · {clean(bill.run)}")
    return _TwoEnds(left, Text(duration(bill.wall_s)))


def run_title(record: RunRecord) -> RenderableType:
    """What ran where on the left, how it ended on the right."""
    header, steps = record.header, headline.steps_text(record)
    left = Text.assemble(
        (clean(header.name), "bold"),
        f" · {clean(header.id)} · {headline.model_text(header)} · {headline.device_text(header)}",
    )
    right = Text.assemble(state_text(header.state), f" · {steps} · {headline.wall_text(header)}")
    return _TwoEnds(left, right)


def _bill_price(bill: BillView) -> RenderableType:
    all_in, steady = bill.usd_per_million_useful_tokens, bill.usd_per_million_useful_tokens_steady
    if all_in.value is None:
        left = Text(f"no dollars per million useful tokens: {clean(all_in.reason)}")
    else:
        left = Text.assemble((dollars(all_in.value), "bold green"), " per million useful tokens, all in")
    parts: list[RenderableType] = [_TwoEnds(left, _steady(steady))]
    if bill.only_quoted:
        parts.append(Text(headline.ONLY_QUOTED, style="yellow"))
    if bill.budget is not None:
        parts.append(budget_line(bill.budget))
    return Group(*parts, Text(f"price: {price_words(bill.price)}", style="dim"))


def budget_line(budget: BudgetView) -> Text:
    """On which side of the red line."""
    return Text(headline.budget_text(budget), style="bold red" if budget.verdict == "over" else "green")


def _steady(steady: Measurement) -> Text:
    if steady.value is None:
        return Text(f"steady: {clean(steady.reason)}", style="dim")
    text = Text.assemble("steady ", (dollars(steady.value), "bold"))
    if steady.ci is not None:
        low, high = (dollars(edge, dollar_decimals(steady.value)) for edge in steady.ci)
        text.append(f" ({low} to {high} {headline.interval_name(steady)})")
    elif steady.n is not None:
        text.append(f" ({headline.no_interval(steady.n)})")
    return text


def price_words(price: PriceView) -> str:
    """$0.0816 an hour, quoted: an example (as of 2026-06)."""
    as_of = f" (as of {clean(price.as_of)})" if price.as_of else ""
    return f"${number(price.usd_per_hour)} an hour, {clean(price.kind)}: {clean(price.source)}{as_of}"


def waterfall(lines: Sequence[LineView], wall_s: float, total_usd: float) -> Table:
    """Lines of a bill that are not zero, each with its bar, and their total."""
    decimals = dollar_decimals(total_usd)
    largest = max((line.share for line in lines), default=0.0) or 1.0
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=30)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row(Text(), *(Text(name, style="dim") for name in ("seconds", "$", "share")), Text())
    for line in lines:
        if line.seconds == 0 and line.usd == 0:
            continue
        style = "green" if line.name in USEFUL_LINES else "yellow"
        table.add_row(
            Text(f"  {line_label(line.name)}"),
            Text(f"{line.seconds:,.2f}"),
            Text(dollars(line.usd, decimals).replace("$", "")),
            Text(share(line.share)),
            Text(bar(line.share / largest), style=style),
        )
    table.add_row(
        Text("  total", style="bold"),
        Text(f"{wall_s:,.2f}", style="bold"),
        Text(dollars(total_usd, decimals).replace("$", ""), style="bold"),
        Text(share(1.0), style="bold"),
        Text(),
    )
    return table


def _known_line(known: Mapping[str, int], measurements: Mapping[str, Measurement]) -> Text:
    kinds = [*KIND_ORDER, *(kind for kind in known if kind not in KIND_ORDER)]
    text = Text(" · ".join(f"{clean(kind)} {known[kind]}" for kind in kinds if known.get(kind)))
    missing = headline.unavailable_text(measurements)
    if missing:
        text.append(f"\nnot known: {missing}", style="dim")
    return text


class _TwoEnds:
    """Left and right on one line where both fit, else one below the other."""

    def __init__(self, left: Text, right: Text) -> None:
        self.left, self.right = left, right

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gap = options.max_width - self.left.cell_len - self.right.cell_len
        if gap >= 2:
            yield Text.assemble(self.left, " " * gap, self.right)
        else:
            yield self.left
            yield self.right


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def state_text(state: str) -> Text:
    """A run's state in its colour."""
    return Text(clean(state), style=_STATE_STYLES.get(state, ""))


def _spans(record: RunRecord) -> Table:
    total = sum(span.seconds for span in record.spans)
    table = _table("span", "seconds", "count", "share", "")
    for column in table.columns[1:4]:
        column.justify = "right"
    for span in sorted(record.spans, key=lambda span: -span.seconds):
        part = span.seconds / total if total else 0.0
        table.add_row(
            Text(words(span.name)),
            Text(f"{span.seconds:,.3f}"),
            Text(f"{span.count:,}"),
            Text(share(part)),
            Text(bar(part), style="cyan"),
        )
    return table


def _evaluations(record: RunRecord) -> Table:
    table = _table("step", "split", "loss", "perplexity", "tokens", "took", "")
    best = min((one.loss for one in record.evaluations), default=None)
    for found in record.evaluations:
        table.add_row(
            Text(f"{found.step:,}"),
            Text(clean(found.split)),
            Text(f"{found.loss:.4f}"),
            Text(number(found.perplexity)),
            Text(f"{found.tokens:,}"),
            Text(duration(found.seconds)),
            Text("best" if found.loss == best else "", style="green"),
        )
    return table


def _measurements(measurements: Mapping[str, Measurement]) -> Table:
    table = _table("name", "value", "kind", "n", "how, or why not")
    table.columns[1].justify = table.columns[3].justify = "right"
    for name, found in measurements.items():
        if found.value is None:
            value, how = Text("–", style="dim"), clean(found.reason)
        else:
            value, how = Text(quantity(found.value, found.unit, name)), clean(found.method)
        if found.ci is not None:
            how += f" ({interval(found.ci, found.unit, name)}, {words(found.ci_method or '95%')})"
        n = "" if found.n is None else f"{found.n:,}"
        table.add_row(Text(clean(name)), value, Text(found.kind), Text(n), Text(how, style="dim"))
    return table


def _choices(header: RunHeader) -> Table:
    table = _table("choice", "value", "reason")
    for name, choice in header.choices.items():
        reason = Text(clean(choice.get("reason", "")), style="dim")
        table.add_row(Text(words(name)), Text(clean(choice.get("value", ""))), reason)
    return table


def _events(events: Sequence[Event]) -> Table:
    table = _table("at", "kind", "what")
    table.columns[0].justify = "right"
    for event in events[:_EVENTS_SHOWN]:
        table.add_row(Text(duration(event.at_s)), Text(words(event.kind)), Text(clean(event.message)))
    return table
