"""A profile of memory for the terminal, as a picture over time, and as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trueup.analysis.memory_trace import layers_together, live_bytes, over_time

from .wording import clean, quantity, share, words

if TYPE_CHECKING:
    from trueup.analysis.memory_summary import MemorySummary, Suggestion
    from trueup.analysis.memory_trace import Holder
    from trueup.schema import Measurement
    from trueup.schema.memory_trace import MemoryTrace

ROWS = 12  # of modules and operators in the terminal; the page and --json have all
OWNERS = 5  # told apart in the picture
POINTS = 600  # of the picture: no screen shows more apart
PEAK = "peak"  # what marks the peak, after the picture's own name
FIGURE_LABELS = {
    "peak_tensor_bytes": "tensors at most",
    "end_tensor_bytes": "tensors at the end",
    "before_rss_bytes": "RSS before the model",
    "peak_rss_bytes": "RSS at most",
}
KIND_LABELS = {"kv_pool": "KV pool and cache", "weights": "weights", "activations": "activations"}


def profile_text(summary: MemorySummary, *, title: str) -> RenderableType:
    """The peak and its owners, by kind, module and operator; the allocator; what would lower it."""
    parts: list[RenderableType] = [Text(clean(title), style="bold"), Text(peak_text(summary)), Text()]
    for name, found in (
        ("by kind", summary.kinds),
        ("by module, all layers together", summary.layers),
        ("by operator", summary.operators),
    ):
        parts += [_table(name, found[:ROWS], len(found), summary.peak.size_bytes), Text()]
    for label, one in _figures({**summary.measurements, **summary.allocator}):
        parts.append(Text.assemble((f"{label}: ", "bold"), f"{_size(one)} ", (f"({_how(one)})", "dim")))
    found_suggestions = list(suggestion_lines(summary.suggestions))
    if found_suggestions:
        parts += [Text(), Text("what would lower the peak:", style="bold")]
        parts += [
            Text.assemble(f"  {what}: {saves} ", (f"({how})", "dim"))
            for what, saves, how in found_suggestions
        ]
    return Group(*parts)


def peak_text(summary: MemorySummary) -> str:
    """How much, and while what was done."""
    held = quantity(summary.peak.size_bytes, "bytes")
    return f"at most {held} of tensors, in {len(summary.peak.held):,} storages: {clean(summary.peak.part)}"


def suggestion_lines(suggestions: Sequence[Suggestion]) -> Iterator[tuple[str, str, str]]:
    """What, how much, and how that is known."""
    for one in suggestions:
        saves, left = quantity(one.saves_bytes, "bytes"), quantity(one.peak_bytes, "bytes")
        yield clean(one.what), f"{saves} less, a peak of {left}", clean(one.how)


def picture(trace: MemoryTrace, prefix: str = "memory") -> str:
    """Bytes of tensors as storages come and go, by the modules that held most at the peak, one above the
    other; dotted lines begin a part of the work."""
    from .svg import ACCENT, INK, MUTED, SOFT, WARN, Canvas

    live = live_bytes(trace)
    at = max(range(len(live)), key=live.__getitem__, default=0)
    most = max(live, default=0)
    unit, unit_name = _unit(most)
    first = min(trace.marks[0][0], at) if trace.marks else 0  # what was there before needs no room
    places = _places(first, len(live), at)
    canvas = Canvas(prefix)
    shades = (_faint(MUTED, 40), ACCENT, WARN, _faint(ACCENT, 55), _faint(WARN, 50), SOFT)
    below = [0.0] * len(places)
    owners = over_time(trace, layers_together, OWNERS)
    for (name, values), colour in zip(owners.items(), shades, strict=False):
        above = [low + values[place] / unit for low, place in zip(below, places, strict=True)]
        x, low, high = _stepped(places, below, above)
        canvas.between(x, low, high, colour)
        canvas.marks([], [], colour, shape="square", fill=colour, label=_short(name))
        below = above
    for start, _ in trace.marks[1:]:
        canvas.line([start, start], [0, most / unit], MUTED, width=0.7, dotted=True)
    if live:
        peak = f"peak {quantity(most, 'bytes')}"
        canvas.marks([at], [most / unit], INK, size=5, label=peak, name=PEAK)
    canvas.x.low, canvas.x.high = float(first), float(max(first + 1, len(live)))
    canvas.y.low, canvas.y.high = 0.0, 1.08 * most / unit or 1.0
    canvas.x_name, canvas.y_name = "storages that came or went", f"tensors, {unit_name}"
    return canvas.svg(_words(trace, live, at))


def page(trace: MemoryTrace, summary: MemorySummary, *, title: str) -> str:
    """One self-contained page: the picture, who held what, and what would lower the peak."""
    from markupsafe import Markup

    from .html import environment

    return (
        environment()
        .get_template("memory.html")
        .render(
            title=title,
            peak=summary.peak,
            peak_text=peak_text(summary),
            parts=[name for _, name in trace.marks],
            tables=[
                ("By kind", summary.kinds),
                ("By module", summary.modules),
                ("By operator", summary.operators),
            ],
            figures=list(_figures({**summary.measurements, **summary.allocator})),
            suggestions=list(suggestion_lines(summary.suggestions)),
            label=holder_label,
            svg=Markup(picture(trace)),  # ours; text from data in it is escaped where it is made
        )
    )


def holder_label(name: str) -> str:
    return KIND_LABELS.get(name, clean(name))


def _table(title: str, found: Sequence[Holder], count: int, peak_bytes: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    rest = f", the first {len(found)} of {count}" if len(found) < count else ""
    table.add_column(f"{title}{rest}")
    for column in ("at the peak", "of it", "own highest", "at the end"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        sizes = (one.at_peak_bytes, one.own_peak_bytes, one.at_end_bytes)
        at_peak, own, end = (quantity(size, "bytes") for size in sizes)
        part = share(one.at_peak_bytes / peak_bytes) if peak_bytes else "–"
        table.add_row(Text(holder_label(one.name)), at_peak, part, own, end)
    return table


def _figures(found: Mapping[str, Measurement]) -> Iterator[tuple[str, Measurement]]:
    for name, one in found.items():
        yield FIGURE_LABELS.get(name) or words(name.removesuffix("_bytes")), one


def _size(one: Measurement) -> str:
    return "–" if one.value is None else quantity(one.value, one.unit)


def _how(one: Measurement) -> str:
    return clean(one.reason) if one.value is None else f"{one.kind}: {clean(one.method)}"


def _places(first: int, events: int, peak: int) -> list[int]:
    """Events to draw, the peak among them."""
    if events - first <= POINTS:
        return list(range(first, events))
    step = (events - 1 - first) / (POINTS - 1)
    return sorted({first + round(n * step) for n in range(POINTS)} | {peak})


def _faint(colour: str, percent: int) -> str:
    return f"color-mix(in srgb, {colour} {percent}%, var(--paper))"


def _stepped(
    places: Sequence[int], low: Sequence[float], high: Sequence[float]
) -> tuple[list[float], list[float], list[float]]:
    """Each value holds until the next event."""
    ends = [*places[1:], places[-1] + 1] if places else []
    x = [float(at) for pair in zip(places, ends, strict=True) for at in pair]
    return x, [one for one in low for _ in range(2)], [one for one in high for _ in range(2)]


def _unit(size: int) -> tuple[float, str]:
    for unit, name in ((2.0**30, "GiB"), (2.0**20, "MiB")):
        if size >= unit:
            return unit, name
    return 2.0**10, "KiB"


def _short(name: str, most: int = 22) -> str:
    text = holder_label(name).removeprefix("model.layers.*.")
    return text if len(text) <= most else "…" + text[1 - most :]


def _words(trace: MemoryTrace, live: Sequence[int], at: int) -> str:
    if not live:
        return "Nothing was held."
    parts = ", ".join(clean(name) for _, name in trace.marks)
    most, end = quantity(live[at], "bytes"), quantity(live[-1], "bytes")
    return f"Tensors over {trace.operators:,} operators ({parts}): at most {most}, {end} at the end."
