"""A plot drawn as SVG that belongs to the page: its fonts, its colours in light and dark, no ids but its own.

Marks are kept in the data's units until `Canvas.svg`, which knows the limits by then. User units are those of
the `viewBox`. How wide a text will be is estimated: the reader's browser chooses the font.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import escape

from .axis import Axis
from .wording import clean

# The style sheet's variables.
INK, MUTED, GRID, ACCENT, SOFT, WARN, PAPER = (
    f"var(--{name})" for name in ("ink", "muted", "line", "accent", "soft", "warn", "paper")
)

WIDTH, HEIGHT = 400, 228  # in user units; text of 11 stays legible from a phone's width to half a desktop's
TEXT, NAME = 11.0, 10.5  # sizes: of ticks, and of names of axes and series
_EDGE, _GAP = 3.0, 5.0
_ROW = 15.0  # of a legend
_SAMPLE = 16.0  # width of what a legend shows before a name
_TICK = 3.0
_MOST_X, _Y_ROOM = 8, 19.0  # ticks: at most so many across, and one in so many units upwards

# Corners of polygons that look as large as a circle of radius 1.
_CORNERS: dict[str, tuple[tuple[float, float], ...]] = {
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "square": ((-0.95, -0.95), (0.95, -0.95), (0.95, 0.95), (-0.95, 0.95)),
    "up": ((0, -1.15), (1.15, 0.95), (-1.15, 0.95)),
    "down": ((0, 1.15), (1.15, -0.95), (-1.15, -0.95)),
    "plus": (
        *((-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35)),
        *((0.35, 1), (-0.35, 1), (-0.35, 0.35), (-1, 0.35), (-1, -0.35), (-0.35, -0.35)),
    ),
    "cross": (
        *((-1, -0.5), (-0.5, -1), (0, -0.5), (0.5, -1), (1, -0.5), (0.5, 0)),
        *((1, 0.5), (0.5, 1), (0, 0.5), (-0.5, 1), (-1, 0.5), (-0.5, 0)),
    ),
}
SHAPES = (*_CORNERS, "circle")


class _Box(NamedTuple):
    """Where the data is drawn, in user units, and how to get there."""

    left: float
    top: float
    right: float
    bottom: float
    across: Callable[[float], float]
    upwards: Callable[[float], float]

    def x(self, value: float) -> float:
        return self.left + self.across(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.upwards(value) * (self.bottom - self.top)


Drawn = Callable[[_Box], str]


class Canvas:
    """One plot. `x` and `y` make room for what is drawn by themselves; the first drawn lies below."""

    def __init__(self, name: str, *, x_margin: float = 0.02, y_margin: float = 0.05) -> None:
        self.name = name
        self.x, self.y = Axis(x_margin), Axis(y_margin)
        self.x_name = self.y_name = ""
        self._below: list[Drawn] = []  # below the grid
        self._above: list[Drawn] = []
        self._legend: list[tuple[str, str]] = []  # text, and the sample before it, around (0, 0)

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float],
        colour: str,
        *,
        width: float = 1.6,
        dotted: bool = False,
        dots: float | None = None,
        gaps: Sequence[int] = (),
        label: str | None = None,
        name: str | None = None,
    ) -> None:
        """`dots`: the size of one at each point. `gaps`: points, ascending, to which no line leads: one that
        stands alone is a dot as wide as the line. `name` becomes the element's id, after the plot's own."""
        self.x.hold(x)
        self.y.hold(y)
        style = f'fill="none" stroke="{colour}" stroke-width="{width:g}"'
        style += ' stroke-dasharray="2 3"' if dotted else ""

        def drawn(box: _Box) -> str:
            parts = _apart_at(gaps, _points(box, x, y))
            round_ends = ' stroke-linecap="round"' if gaps else ""
            each = (f"M {' L '.join(part)}{'' if len(part) > 1 else ' h 0'}" for part in parts)
            return f'<path{self._id(name)} d="{" ".join(each)}" {style}{round_ends}/>'

        self._above.append(drawn)
        sample = f'<path d="M -8 0 H 8" {style}/>'
        if dots is not None:
            self.marks(x, y, colour, size=dots)
            sample += f'<circle r="{dots / 2:g}" fill="{colour}"/>'
        self._explain(label, sample)

    def marks(
        self,
        x: Sequence[float],
        y: Sequence[float],
        colour: str,
        *,
        shape: str = "circle",
        size: float = 4.5,
        fill: str | None = None,
        width: float = 1.0,
        label: str | None = None,
        name: str | None = None,
    ) -> None:
        """One of SHAPES at each point, `size` across; filled with its own colour unless told otherwise."""
        self.x.hold(x)
        self.y.hold(y)
        style = f'fill="{fill or colour}" stroke="{colour}" stroke-width="{width:g}"'

        def drawn(box: _Box) -> str:
            each = (_mark(shape, box.x(a), box.y(b), size / 2) for a, b in zip(x, y, strict=True))
            return f"<g{self._id(name)} {style}>{''.join(each)}</g>"

        self._above.append(drawn)
        self._explain(label, f"<g {style}>{_mark(shape, 0, 0, min(size, 9) / 2)}</g>")

    def between(
        self,
        x: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
        colour: str,
        *,
        opacity: float = 1,
        gaps: Sequence[int] = (),
    ) -> None:
        """The area from `low` to `high`; `gaps` as in `line`."""
        self.x.hold(x)
        self.y.hold((*low, *high))

        def drawn(box: _Box) -> str:
            there, back = (_apart_at(gaps, _points(box, x, y)) for y in (high, low))
            each = (f"M {' L '.join([*a, *reversed(b)])} Z" for a, b in zip(there, back, strict=True))
            return f'<path d="{" ".join(each)}" fill="{colour}" fill-opacity="{opacity:g}"/>'

        self._above.append(drawn)

    def span(self, low: float, high: float, colour: str, *, label: str | None = None) -> None:
        """A stretch of the horizontal axis, shaded over the whole height as far as it is in the picture."""

        def drawn(box: _Box) -> str:
            left, right = (min(max(box.x(end), box.left), box.right) for end in (low, high))
            where = f'x="{left:.2f}" y="{box.top:.2f}" width="{right - left:.2f}"'
            return f'<rect {where} height="{box.bottom - box.top:.2f}" fill="{colour}"/>'

        self._below.append(drawn)
        self._explain(label, f'<rect x="-8" y="-4.5" width="16" height="9" fill="{colour}"/>')

    def bars(self, heights: Sequence[float], colour: str, *, width: float = 0.86) -> None:
        """Side by side at 0, 1, 2…, from zero."""
        self.x.hold((-0.5, len(heights) - 0.5))
        self.y.hold((0.0, *heights))
        self.y.low = 0.0

        def drawn(box: _Box) -> str:
            each = (
                f"M {box.x(place - width / 2):.2f} {box.bottom:.2f} V {box.y(height):.2f} "
                f"H {box.x(place + width / 2):.2f} V {box.bottom:.2f} Z"
                for place, height in enumerate(heights)
            )
            return f'<path d="{" ".join(each)}" fill="{colour}"/>'

        self._above.append(drawn)

    def words(self, x: float, y: float, text: str, *, rise: float) -> None:
        """Text centred over a point, `rise` units above it, moved so far that it is in the picture."""

        def drawn(box: _Box) -> str:
            half = width_of(text, NAME) / 2
            at = min(max(box.x(x), half + _EDGE), WIDTH - half - _EDGE)
            return _text(text, at, box.y(y) - rise, NAME, INK, anchor="middle")

        self._above.append(drawn)

    def svg(self, label: str) -> str:
        """The plot as an inline `<svg>`; `label` says in words what it shows."""
        legend, top = self._legend_drawn()
        box = self._box(top)
        axes = "".join(self._axes(box))
        below, above = ("".join(part(box) for part in parts) for parts in (self._below, self._above))
        title = f'<title id="{self.name}-title">{escape(clean(label))}</title>'
        attributes = f'class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        attributes += f' aria-labelledby="{self.name}-title"'
        return f"<svg {attributes}>{title}{legend}{below}{axes}{above}</svg>"

    def _id(self, name: str | None) -> str:
        return f' id="{self.name}-{name}"' if name else ""

    def _explain(self, label: str | None, sample: str) -> None:
        if label is not None:
            self._legend.append((label, sample))

    def _legend_drawn(self) -> tuple[str, float]:
        """Above the axes, so that it never covers data, in as many rows as it needs; and where it ends."""
        parts, x, y = [], _EDGE, _ROW / 2
        for text, sample in self._legend:
            wide = _SAMPLE + _GAP + width_of(text, NAME)
            if x > _EDGE and x + wide > WIDTH - _EDGE:
                x, y = _EDGE, y + _ROW
            parts.append(f'<g transform="translate({x + _SAMPLE / 2:.1f} {y:.1f})">{sample}</g>')
            parts.append(_text(text, x + _SAMPLE + _GAP, y + NAME * 0.35, NAME, MUTED))
            x += wide + 14
        return "".join(parts), (y + _ROW / 2 + 6) if parts else 0.0

    def _box(self, top: float) -> _Box:
        """What is left for the data beside the texts."""
        top += (NAME + 5) if self.y_name else _EDGE
        top += TEXT / 2
        bottom = HEIGHT - _EDGE - (NAME + 5 if self.x_name else 0) - TEXT - _TICK - 3
        widest = max((width_of(text, TEXT) for _, text in self.y.ticks(_most_up(top, bottom))), default=0.0)
        last = max((width_of(text, TEXT) for _, text in self.x.ticks(_MOST_X)[-1:]), default=0.0)
        left, right = _EDGE + widest + _GAP, WIDTH - max(8.0, last / 2)
        return _Box(left, top, right, bottom, self.x.placing(), self.y.placing())

    def _axes(self, box: _Box) -> Iterator[str]:
        across, upwards = self._ticks_across(box), self.y.ticks(_most_up(box.top, box.bottom))
        lines = " ".join(f"M {box.left:.2f} {box.y(value):.2f} H {box.right:.2f}" for value, _ in upwards)
        ticks = "".join(f" M {box.x(value):.2f} {box.bottom:.2f} v {_TICK:g}" for value, _ in across)
        base = f"M {box.left:.2f} {box.bottom:.2f} H {box.right:.2f}{ticks}"
        yield f'<path d="{lines}" fill="none" stroke="{GRID}" stroke-width="0.8"/>' if lines else ""
        yield f'<path d="{base}" fill="none" stroke="{GRID}"/>'
        if self.y_name:
            yield _text(self.y_name, _EDGE, box.top - TEXT / 2 - 5, NAME, MUTED)
        for value, text in upwards:
            yield _text(text, box.left - _GAP, box.y(value) + TEXT * 0.35, TEXT, MUTED, anchor="end")
        for value, text in across:
            yield _text(text, box.x(value), box.bottom + _TICK + TEXT + 1, TEXT, MUTED, anchor="middle")
        if self.x_name:
            middle = (box.left + box.right) / 2
            yield _text(self.x_name, middle, HEIGHT - _EDGE - 2, NAME, MUTED, anchor="middle")

    def _ticks_across(self, box: _Box) -> list[tuple[float, str]]:
        """As many as stand beside each other without touching."""
        for most in range(_MOST_X, 1, -1):
            ticks = self.x.ticks(most)
            if _apart((box.x(value), width_of(text, TEXT)) for value, text in ticks):
                return ticks
        return self.x.ticks(1)


def width_of(text: str, size: float) -> float:
    """About how wide a sans serif sets it, in the unit of `size`; rather too wide than too narrow."""
    return size * sum(_em(char) for char in clean(text))


def _em(char: str) -> float:
    if unicodedata.east_asian_width(char) in "WF":
        return 1.0
    if char in " .,:;'|!()[]ijlftr/":
        return 0.36
    if char in "mwMW%@—→":
        return 0.9
    return 0.68 if char.isupper() else 0.58


def _apart(texts: Iterable[tuple[float, float]]) -> bool:
    """Whether centred texts, each by its place and width, leave room between them."""
    end = float("-inf")
    for at, width in texts:
        if at - width / 2 < end:
            return False
        end = at + width / 2 + TEXT / 2
    return True


def _points(box: _Box, x: Sequence[float], y: Sequence[float]) -> list[str]:
    return [f"{box.x(a):.2f} {box.y(b):.2f}" for a, b in zip(x, y, strict=True)]


def _apart_at(gaps: Sequence[int], points: list[str]) -> list[list[str]]:
    """The points in stretches, a new one from each of `gaps`."""
    return [points[start:end] for start, end in pairwise((0, *gaps, len(points)))]


def _most_up(top: float, bottom: float) -> int:
    return max(2, int((bottom - top) / _Y_ROOM))


def _mark(shape: str, x: float, y: float, half: float) -> str:
    if shape == "circle":
        return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{half:.2f}"/>'
    corners = " ".join(f"{x + a * half:.2f},{y + b * half:.2f}" for a, b in _CORNERS[shape])
    return f'<polygon points="{corners}"/>'


def _text(text: str, x: float, y: float, size: float, colour: str, *, anchor: str = "start") -> str:
    """`y` is the line that letters stand on."""
    where = f'x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" fill="{colour}"'
    where += "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f"<text {where}>{escape(clean(text))}</text>"
