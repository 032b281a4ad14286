"""A comparison as one self-contained page: verdict, the Pareto picture, the table, the differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from trueup.analysis.compare_findings import NO_VERDICT, UNDECIDED

from .compare import group_line, ratio_text, value_text, verdict_text
from .html import Plot, environment
from .svg import ACCENT, INK, MUTED, PAPER, SOFT, Canvas
from .wording import clean, duration, number

if TYPE_CHECKING:
    from trueup.analysis.compare import Comparison
    from trueup.analysis.compare_front import Point

_SMALLEST, _LARGEST = 60.0, 700.0  # areas of the circles, in square points
_NAME_CHARACTERS = 24


def comparison_page(found: Comparison) -> str:
    """The page."""
    findings = {(one.metric, one.group): one for one in found.findings}
    svg = pareto(found.front)
    picture = None
    if svg is not None:
        note = "the circle's area is the time; hollow: another group is nowhere worse and somewhere better"
        picture = Plot("Cost, quality and time", note, Markup(svg))
    page = environment()
    page.globals.update(
        value_text=value_text, ratio_text=ratio_text, verdict_text=verdict_text, group_line=group_line
    )
    return page.get_template("compare.html").render(
        found=found,
        findings=findings,
        others=[group for group in found.groups if group.name != found.reference],
        picture=picture,
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
    with Canvas("pareto") as canvas:
        axes = canvas.axes
        axes.plot(
            [one.usd_per_million_useful_tokens for one in front],
            [one.perplexity for one in front],
            color=SOFT,
            linewidth=3,
            zorder=1,
        )
        for one in points:
            area = _SMALLEST + (_LARGEST - _SMALLEST) * one.wall_s / longest
            x, y = one.usd_per_million_useful_tokens, one.perplexity
            filled = PAPER if one.behind else ACCENT
            edge = MUTED if one.behind else ACCENT
            axes.scatter([x], [y], s=area, facecolor=filled, edgecolor=edge, linewidth=1.4, zorder=2)
            axes.annotate(
                f"{clean(one.group)[:_NAME_CHARACTERS]}, {duration(one.wall_s)}",
                (x, y),
                xytext=(0, 4 + area**0.5 / 2),
                textcoords="offset points",
                ha="center",
                color=INK,
                fontsize=10.5,
            )
        axes.margins(x=0.25, y=0.35)
        axes.set_xlabel("dollars per million useful tokens, all in", fontsize=10.5)
        axes.set_title("held-out perplexity, best", fontsize=10.5, color=MUTED, pad=8)
        return canvas.svg(_in_words(points))


def _in_words(points: Sequence[Point]) -> str:
    told = "; ".join(
        f"{point.group} {number(point.usd_per_million_useful_tokens)} dollars, perplexity "
        f"{number(point.perplexity)}, {duration(point.wall_s)}"
        f"{', behind ' + ' and '.join(point.behind) if point.behind else ', on the front'}"
        for point in points
    )
    return clean(f"Cost, quality and time of each group: {told}.")
