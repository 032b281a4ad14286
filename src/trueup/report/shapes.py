"""The shape plan of a job as a terminal table: every alternative with what it would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .wording import clean, duration, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup.schema import Alternative, Measurement, PlatformProfile, Shape, ShapePlan

SHAPES_SHOWN = 8


def plan_text(plan: ShapePlan, profile: PlatformProfile, *, job_tokens: float) -> RenderableType:
    """The chosen shapes, the table of alternatives, and what is known of the platform."""
    return Group(
        Text.assemble((plan.strategy, "bold"), f", compile {plan.compile}: {clean(plan.reason)}"),
        Text(f"training {_shapes(plan.training)}; evaluation {_shapes(plan.evaluation)}"),
        Text(
            f"micro-batches a step: {plan.micro_batches_per_step:,}; "
            f"steps an epoch: {plan.steps_per_epoch:,}; job of {job_tokens:,.0f} useful tokens"
        ),
        Text(),
        _alternatives(plan.alternatives),
        Text(),
        Text(f"times are of {clean(profile.model)} on {clean(profile.device_name)}, from these figures:"),
        _figures(profile),
    )


def _alternatives(alternatives: Sequence[Alternative]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("strategy", "compile", "shapes", "padding", "head padding", "compiling", "job", "verdict"):
        table.add_column(name, justify="right" if name not in ("strategy", "compile", "verdict") else "left")
    for one in alternatives:
        table.add_row(
            one.strategy,
            one.compile,
            "–" if one.shapes is None else str(one.shapes),
            "–" if one.padding_share is None else share(one.padding_share),
            "–" if one.head_padding_share is None else share(one.head_padding_share),
            "–" if one.compile_s is None else duration(one.compile_s),
            "–" if one.total_s is None else duration(one.total_s),
            Text(clean(one.verdict)),
            style="bold" if one.verdict == "chosen" else None,
        )
    return table


def _shapes(shapes: Sequence[Shape]) -> str:
    """4 x 128, 1 x 512, … (rows x width)"""
    shown = ", ".join(f"{rows} x {width}" for rows, width in shapes[:SHAPES_SHOWN])
    more = len(shapes) - SHAPES_SHOWN
    return (shown or "none") + (f" and {more} more" if more > 0 else "")


def _figures(profile: PlatformProfile) -> Table:
    """What the times rest on, each figure with how it is known."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    for name, one in _named(profile):
        unit = "" if one.unit == "1" else f" {one.unit}"
        value = "–" if one.value is None else f"{one.value:.3g}{unit}"
        n = "" if one.n is None else f", n = {one.n}"
        how = clean(one.method or one.reason)
        table.add_row(name, value, f"{one.kind}{n}", Text(how, style="dim"))
    return table


def _named(profile: PlatformProfile) -> Iterator[tuple[str, Measurement]]:
    yield "a micro-batch", profile.micro_batch_s
    yield "a processed token", profile.token_s
    yield "a query with a key", profile.pair_s
    yield "a row of the head", profile.head_row_s
    for mode, figures in profile.compile.items():
        yield f"compile {mode}, first shape", figures.first_shape_s
        yield f"compile {mode}, each further", figures.further_shape_s
        yield f"compile {mode}, evaluation", figures.evaluation_shape_s
        yield f"compile {mode}, step time", figures.step_ratio
