"""A plan of serving's memory for the terminal: every line with its arithmetic, and what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .wording import clean, quantity, words

if TYPE_CHECKING:
    from trueup.schema import Measurement

LINE_LABELS = {
    "layers_bytes": "weights of the layers",
    "embedding_bytes": "embedding",
    "head_bytes": "head",
    "norms_bytes": "norms",
    "packing_bytes": "layout of the products",
    "rotary_bytes": "rotary tables",
    "kv_pool_bytes": "KV pool",
    "activations_bytes": "activations of the largest step",
    "logits_bytes": "logits",
    "sampler_bytes": "sampler",
    "rounding_bytes": "allocator's rounding",
    "code_bytes": "compiled code, driver",
    "scratchpad_bytes": "scratchpad",
    "dma_rings_bytes": "DMA rings",
    "collectives_bytes": "collectives",
    "process_bytes": "the process itself",
    "headroom_bytes": "headroom",
    "needs_bytes": "needs",
}
CHANGES_SHOWN = 6


class ChangeView(Protocol):
    @property
    def what(self) -> str: ...
    @property
    def needs_bytes(self) -> float: ...
    @property
    def fits(self) -> bool: ...


class FitView(Protocol):
    @property
    def fits(self) -> bool | None: ...
    @property
    def longest_context(self) -> int | None: ...
    @property
    def most_concurrency(self) -> int | None: ...
    @property
    def why(self) -> str: ...
    @property
    def changes(self) -> Sequence[ChangeView]: ...


class AskView(Protocol):
    @property
    def context(self) -> int: ...
    @property
    def concurrency(self) -> int: ...


def plan_text(
    lines: Mapping[str, Measurement],
    fit: FitView,
    *,
    title: str,
    ask: AskView,
    has: Measurement,
    notes: Sequence[str] = (),
) -> RenderableType:
    """The lines, the verdict, the most that fits, and what would."""
    parts: list[RenderableType] = [Text(clean(title), style="bold"), Text(), _lines(lines, has), Text()]
    unknown = {
        LINE_LABELS.get(name, words(name)): clean(line.reason)
        for name, line in lines.items()
        if line.value is None
    }
    free = (has.value or 0.0) - (lines["needs_bytes"].value or 0.0) + (lines["headroom_bytes"].value or 0.0)
    parts += [_verdict(fit, list(unknown), free), *_limits(fit, ask), *_changes(fit)]
    reasons = [f"{label}: {reason}" for label, reason in unknown.items()]
    parts += [Text(line, style="dim") for line in (*reasons, *map(clean, notes))]
    return Group(*parts)


def _lines(lines: Mapping[str, Measurement], has: Measurement) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for name, line in lines.items():
        style = "bold" if name == "needs_bytes" else ""
        label = LINE_LABELS.get(name, words(name))
        table.add_row(Text(label, style=style), Text(_size(line), style=style), Text(_how(line), style="dim"))
    table.add_row(Text("has", style="bold"), Text(_size(has), style="bold"), Text(_how(has), style="dim"))
    return table


def _verdict(fit: FitView, unknown: Sequence[str], free_bytes: float) -> Text:
    if fit.fits is None:
        return Text(clean(fit.why), style="bold yellow")
    if fit.fits:
        if unknown:
            room = quantity(free_bytes, "bytes")
            provided = f"fits, if what is not known ({', '.join(unknown)}) takes no more than {room}: "
            return Text(f"{provided}{clean(fit.why)}", style="bold yellow")
        return Text(f"fits: {clean(fit.why)}", style="bold green")
    return Text(f"does not fit: {clean(fit.why)}", style="bold red")


def _limits(fit: FitView, ask: AskView) -> list[Text]:
    if fit.longest_context is None or fit.most_concurrency is None:
        return []
    context = f"{fit.longest_context:,} tokens" if fit.longest_context else "none"
    rows = f"{fit.most_concurrency:,}" if fit.most_concurrency else "none"
    return [
        Text.assemble((f"longest context of {ask.concurrency:,} at once: ", "bold"), context),
        Text.assemble((f"most at once of {ask.context:,} tokens: ", "bold"), rows),
    ]


def _changes(fit: FitView) -> list[Text]:
    if not fit.changes:
        return []
    found = [Text("what to change:", style="bold")]
    for one in fit.changes[:CHANGES_SHOWN]:
        verdict = "fits" if one.fits else "still too much"
        found.append(Text(f"  {clean(one.what)}: needs {quantity(one.needs_bytes, 'bytes')}, {verdict}"))
    return found


def _size(one: Measurement) -> str:
    return "–" if one.value is None else quantity(one.value, one.unit)


def _how(one: Measurement) -> str:
    return "" if one.value is None else clean(one.method)
