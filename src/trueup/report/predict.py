"""A prediction, what fits, and the gap between prediction and measurement, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .wording import clean, duration, quantity, share, words

if TYPE_CHECKING:
    from trueup.schema import Measurement, Prediction

BASIS_LABELS = {"datasheet": "datasheet", "calibrated": "as calibrated"}
LINE_LABELS = {
    "step_s": "step",
    "compute_s": "  compute",
    "padding_s": "  padding",
    "communication_s": "  communication",
    "data_wait_s": "wait for data",
    "compile_s": "compiling, whole run",
    "step_p99_s": "step, 99th percentile",
    "useful_tokens_per_s": "useful tokens per second",
    "weights_bytes": "  weights",
    "gradients_bytes": "  gradients",
    "optimizer_bytes": "  optimizer",
    "activations_bytes": "  activations",
    "working_copies_bytes": "  working copies",
    "logits_bytes": "  logits",
    "fragmentation_bytes": "  fragmentation allowance",
    "training_bytes": "memory of training",
    "base_bytes": "  the process itself",
    "peak_memory_bytes": "peak memory",
    "power_w": "power",
    "usd_per_million_useful_tokens_steady": "$ per million useful tokens, steps alone",
}


class AboutView(Protocol):
    @property
    def title(self) -> str: ...
    @property
    def lines(self) -> Sequence[str]: ...


class FitView(Protocol):
    @property
    def micro_batch_rows(self) -> int | None: ...
    @property
    def width(self) -> int: ...
    @property
    def longest_row(self) -> int | None: ...
    @property
    def why(self) -> str: ...


class RowView(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def predicted(self) -> Measurement: ...
    @property
    def measured(self) -> Measurement: ...
    @property
    def difference(self) -> float | None: ...
    @property
    def share(self) -> float | None: ...


class GapView(Protocol):
    @property
    def basis(self) -> str | None: ...
    @property
    def platform(self) -> str | None: ...
    @property
    def rows(self) -> Sequence[RowView]: ...
    @property
    def cause(self) -> str | None: ...
    @property
    def note(self) -> str | None: ...


def predict_text(predictions: Sequence[Prediction], *, about: AboutView) -> RenderableType:
    """Both predictions side by side, the arithmetic of each line, and why some have no figure."""
    parts: list[RenderableType] = [Text(clean(about.title), style="bold")]
    parts += [Text(clean(line)) for line in about.lines]
    parts += [Text(), _lines(predictions)]
    reasons = list(_reasons(predictions))
    if reasons:
        parts += [Text(), *(Text(line, style="dim") for line in reasons)]
    return Group(*parts)


def fit_text(fit: FitView) -> RenderableType:
    """The largest micro-batch and row, with the arithmetic."""
    rows = (
        "none" if fit.micro_batch_rows is None else f"{fit.micro_batch_rows:,} rows of {fit.width:,} tokens"
    )
    longest = "none" if fit.longest_row is None else f"{fit.longest_row:,} tokens"
    return Group(
        Text(),
        Text.assemble(("largest micro-batch: ", "bold"), rows),
        Text.assemble(("longest single row: ", "bold"), longest),
        Text(clean(fit.why), style="dim"),
    )


def gap_text(gap: GapView) -> RenderableType:
    """Predicted against measured, line by line."""
    if not gap.rows:
        return Text(clean(gap.note or "nothing was foretold"), style="dim")
    table = _table("", "predicted", "measured", "difference", "")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in gap.rows:
        table.add_row(
            Text(label(row.name)),
            _figure(row.predicted, row.name),
            _figure(row.measured, row.name),
            Text(difference(row)),
            Text("" if row.share is None else signed_share(row.share)),
        )
    parts: list[RenderableType] = [Text(gap_source(gap), style="dim"), table]
    parts += [Text(clean(line)) for line in (gap.cause, gap.note) if line]
    parts += [Text(line, style="dim") for line in gap_reasons(gap)]
    return Group(*parts)


def gap_source(gap: GapView) -> str:
    """What the run was held against."""
    basis = BASIS_LABELS.get(gap.basis or "", gap.basis or "")
    return f"foretold before the first step, {basis}: {clean(gap.platform)}"


def gap_reasons(gap: GapView) -> list[str]:
    """Why lines of a gap have no figure, each reason once."""
    found: dict[str, list[str]] = {}
    for row in gap.rows:
        for which, one in (("predicted", row.predicted), ("measured", row.measured)):
            if one.value is None:
                found.setdefault(clean(one.reason), []).append(f"{label(row.name).strip()} {which}")
    return [f"{', '.join(names)}: {reason}" for reason, names in found.items()]


def label(name: str) -> str:
    return LINE_LABELS.get(name, words(name))


def difference(row: RowView) -> str:
    """Measured less predicted, signed."""
    if row.difference is None:
        return "–"
    text = quantity(abs(row.difference), row.unit, row.name)
    return f"{'−' if row.difference < 0 else '+'}{text}"


def signed_share(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{share(abs(value))}"


def _lines(predictions: Sequence[Prediction]) -> Table:
    table = _table("", *(BASIS_LABELS[one.basis] for one in predictions), "how")
    for column in table.columns[1:-1]:
        column.justify = "right"
        column.no_wrap = True
    for name in LINE_LABELS:
        found = [one.lines[name] for one in predictions]
        how = next((one.method for one in reversed(found) if one.value is not None), "")
        table.add_row(
            Text(label(name)), *(_figure(one, name) for one in found), Text(clean(how), style="dim")
        )
    return table


def _figure(one: Measurement, name: str) -> Text:
    if one.value is None:
        return Text("–", style="dim")
    if one.unit == "s" and not one.value:
        return Text(duration(0))
    return Text(quantity(one.value, one.unit, name).removesuffix(" per million useful tokens"))


def _reasons(predictions: Iterable[Prediction]) -> Iterable[str]:
    for one in predictions:
        found: dict[str, list[str]] = {}
        for name, line in one.lines.items():
            if line.value is None:
                found.setdefault(clean(line.reason), []).append(label(name).strip())
        yield from (
            f"{BASIS_LABELS[one.basis]}, no {', '.join(names)}: {reason}" for reason, names in found.items()
        )


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
