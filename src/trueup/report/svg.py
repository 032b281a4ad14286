"""A matplotlib figure as SVG that belongs to the page: its fonts, its colours in light and dark, its own ids.

matplotlib writes fixed colours and fonts and generic ids. Here plots are drawn in sentinel colours, which
become CSS variables; fonts are left to the page; and every id gets a prefix, because several plots in one
document would otherwise share clip paths and markers.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Sentinels: colours that nothing else in a plot has. Each becomes the CSS variable of the same name.
INK, MUTED, GRID, ACCENT, SOFT, WARN, PAPER = (
    "#010203",
    "#010204",
    "#010205",
    "#010206",
    "#010207",
    "#010208",
    "#010209",
)
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "line",
    ACCENT: "accent",
    SOFT: "soft",
    WARN: "warn",
    PAPER: "paper",
}

WIDTH, HEIGHT = 400, 228  # in user units; text of 11 stays legible from a phone's width to half a desktop's

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label from data may hold a dollar sign
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.size": 3,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "legend.labelcolor": MUTED,
    "legend.handlelength": 1.4,
    "legend.borderaxespad": 0.0,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.5,
}


class Canvas:
    """One plot being drawn: a figure with one pair of axes. A context, so that the style is this plot's."""

    def __init__(self, name: str) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        self.name = name
        style: Any = {**_STYLE, "svg.hashsalt": name}  # Any: the stubs list every parameter by name
        self._context = mpl.rc_context(style)
        self._figure_class: type[Figure] = Figure
        self.figure: Figure
        self.axes: Axes

    def __enter__(self) -> Canvas:
        self._context.__enter__()
        self.figure = self._figure_class(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained")
        self.figure.patch.set_alpha(0)
        self.axes = self.figure.add_subplot()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._context.__exit__(*failure)

    def legend(self, columns: int = 4) -> None:
        """Above the axes, so that it never covers data."""
        if self.axes.get_legend_handles_labels()[0]:
            self.figure.legend(loc="outside upper left", ncols=columns)

    def svg(self, label: str) -> str:
        """The plot as an inline `<svg>`; `label` says in words what it shows."""
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        out = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # The browser draws the text; that matplotlib's font lacks one of its letters does not matter.
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            # As savefig does, which draws twice: once for the layout alone, which drawing makes anyway.
            canvas: Any = FigureCanvasSVG(self.figure)  # Any: the stubs leave print_svg untyped
            canvas.print_svg(out, metadata=no_metadata)
        return themed(out.getvalue(), self.name, label)


def themed(svg: str, prefix: str, label: str) -> str:
    """Drop prolog, metadata and global styles; prefix ids; name colours; leave fonts to the page."""
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = re.sub(r'xlink:href="#', f'href="#{prefix}-', body)
    # font: [style] [weight] SIZEpx FAMILIES  ->  the size alone
    body = re.sub(r"font: (?:[\w-]+ )*([\d.]+px) [^;\"]*", r"font-size: \1", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    title = f'<title id="{prefix}-title">{escape(label)}</title>'
    attributes = f'class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{prefix}-title"'
    return f"<svg {attributes}>{title}" + re.sub(r"\s*\n\s*", "\n", body[body.index(">") + 1 :]).strip()
