"""A comparison as one self-contained page: verdict, the Pareto picture, the table, the differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from trueup.analysis.compare_findings import NO_VERDICT, UNDECIDED
from trueup.analysis.load_metrics import themes_of

from .compare import (
    cell_text,
    gathered_differences,
    group_line,
    known_to_any,
    ratio_text,
    unknown_words,
    verdict_text,
)
from .html import Plot, environment
from .svg import ACCENT, MUTED, PAPER, SOFT, Canvas
from .wording import clean, duration, number

if TYPE_CHECKING:
    from trueup.analysis.compare import Comparison
    from trueup.analysis.compare_front import Point

_SMALLEST, _LARGEST = 60.0, 700.0  # areas of the squares around the circles, in square units
_NAME_CHARACTERS = 24
TRAINED = "useful tokens are tokens of the data that are not padding, counted once"
LOADED = "requests are those of the measured stretch, warm-up left out; tokens are as the server counts them"


def comparison_page(found: Comparison) -> str:
    """The page."""
    findings = {(one.metric, one.group): one for one in found.findings}
    svg = pareto(found.front)
    picture = None
    if svg is not None:
        note = "the circle's area is the time; hollow: another group is nowhere worse and somewhere better"
        picture = Plot("Cost, quality and time", note, Markup(svg))
    page = environment()
    load = found.kind == "load"
    known = [row for row in found.rows if known_to_any(found, row.metric)]
    themes = themes_of(known, lambda row: row.metric) if load else [("", known)]
    page.globals.update(
        cell_text=cell_text,
        ratio_text=ratio_text,
        verdict_text=verdict_text,
        group_line=group_line,
        gathered=gathered_differences,
    )
    return page.get_template("compare.html").render(
        found=found,
        findings=findings,
        others=[group for group in found.groups if group.name != found.reference],
        picture=picture,
        themes=themes,
        unknown=unknown_words(found),
        footnote=LOADED if load else TRAINED,
        unit="a request" if load else "a step",
        undecided=(NO_VERDICT, UNDECIDED),
        title=", ".join(clean(group.name) for group in found.groups),
    )


def pareto(points: Sequence[Point]) -> str | None:
    """Dollars per million useful tokens across, held-out perplexity upwards, wall clock as the circle's area;
    None where no group has all three."""
    if not points:
        return None
    longest = max(point.wall_s for point in points) or 1.0
    front = sorted(
        (point for point in points if not point.behind), key=lambda one: one.usd_per_million_useful_tokens
    )
    canvas = Canvas("pareto", x_margin=0.25, y_margin=0.35)
    canvas.line(
        [one.usd_per_million_useful_tokens for one in front],
        [one.perplexity for one in front],
        SOFT,
        width=3,
    )
    sizes = [math.sqrt(_SMALLEST + (_LARGEST - _SMALLEST) * one.wall_s / longest) for one in points]
    for one, across in zip(points, sizes, strict=True):
        colour, fill = (MUTED, PAPER) if one.behind else (ACCENT, ACCENT)
        x, y = one.usd_per_million_useful_tokens, one.perplexity
        canvas.marks([x], [y], colour, size=across, fill=fill, width=1.4)
    for one, across in zip(points, sizes, strict=True):  # over all circles
        text = f"{clean(one.group)[:_NAME_CHARACTERS]}, {duration(one.wall_s)}"
        canvas.words(one.usd_per_million_useful_tokens, one.perplexity, text, rise=4 + across / 2)
    canvas.x_name = "dollars per million useful tokens, all in"
    canvas.y_name = "held-out perplexity, best"
    return canvas.svg(_in_words(points))


def _in_words(points: Sequence[Point]) -> str:
    told = "; ".join(
        f"{point.group} {number(point.usd_per_million_useful_tokens)} dollars, perplexity "
        f"{number(point.perplexity)}, {duration(point.wall_s)}"
        f"{', behind ' + ' and '.join(point.behind) if point.behind else ', on the front'}"
        for point in points
    )
    return clean(f"Cost, quality and time of each group: {told}.")
