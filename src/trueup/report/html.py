"""One self-contained page for one run or several: no scripts, no requests; for screen, phone and print.

The page is a jinja2 template with autoescape on; whatever came from data (names, events, recipe values, model
output) is cleaned of control characters and escaped. Only the plots and the style sheet, both made here, go
in as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trueup.analysis.names import NAMES
from trueup.analysis.residual import Gap, gap_of
from trueup.files.whole import prove_writable, replacing_file
from trueup.schema import InputError, Measurement, RunRecord, StorageError

from . import headline, plots, predict, wording
from .views import BillView, ModelBillView

ROWS_OPEN = 12  # a longer list starts folded
SIDES_IN_A_ROW = 7  # columns of figures side by side; more are put below one another

# Measurements are grouped by what they speak of, which their unit or name tells. First match wins.
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Cost", ("usd",)),
    ("Learning", ("eval_", "loss", "grad")),
    ("Power, heat and load", ("energy", "power", "temperature", "clock", "throttle", "cpu", "utilisation")),
    ("Communication", ("communication", "algorithm")),
    ("Memory", ("bytes", "memory")),
    ("Compiling", ("compile",)),
    ("Work", ("mfu", "hfu", "flop", "padding", "parameters")),
    ("Tokens", ("tokens",)),
    ("Time", ("_s", "step", "share")),
)
_REST = "Other"
_FILTERS = (
    "date",
    "dollars",
    "duration",
    "interval",
    "line_label",
    "money",
    "number",
    "quantity",
    "quantity_within",
    "share",
    "words",
)


@dataclass(frozen=True)
class Plot:
    title: str
    note: str
    svg: Markup


@dataclass(frozen=True)
class RunView:
    """One run as the template sees it."""

    anchor: str
    record: RunRecord
    bill: BillView | None
    price_models: Sequence[ModelBillView]
    plots: Sequence[Plot]
    data_plot: Plot | None
    tiles: Sequence[tuple[str, str, str]]  # label, value, exact value
    groups: Sequence[tuple[str, Sequence[tuple[str, Measurement]]]]
    recipe: Sequence[tuple[str, str, str]]  # key, value, source
    environment: Sequence[tuple[str, str]]
    gap: Gap  # what was foretold, against what was measured


def render(
    records: Sequence[RunRecord],
    *,
    bills: Mapping[str, BillView | None] | None = None,
    price_models: Mapping[str, Sequence[ModelBillView]] | None = None,
) -> str:
    """The page for these runs, in the order given. `bills`, and what each would be under other price models,
    by run id; without a bill, the page says how to."""
    if not records:
        raise InputError("no run to report on: name at least one run")
    billed, priced = bills or {}, price_models or {}
    runs = [
        _view(f"run-{n}", record, billed.get(record.header.id), priced.get(record.header.id, ()))
        for n, record in enumerate(records, start=1)
    ]
    names = ", ".join(dict.fromkeys(wording.clean(record.header.name) for record in records))
    return environment().get_template("page.html").render(runs=runs, title=names)


def write(path: str | os.PathLike[str], html: str) -> None:
    """Write the page whole or not at all: a reader never sees half of it, and an old one is kept on failure.

    Raises InputError where `path` is a folder or its folder does not exist, StorageError where writing fails.
    """
    target = _file(path)
    try:
        with replacing_file(target) as part:
            part.write_bytes(html.encode("utf-8", "replace"))
    except OSError as error:
        raise _unwritten(target, error) from error


def require_place(path: str | os.PathLike[str]) -> None:
    """Raises what `write` would: for before the work whose page it is, which may take long."""
    target = _file(path)
    try:
        prove_writable(target.parent)
    except OSError as error:
        raise _unwritten(target, error) from error


def _file(path: str | os.PathLike[str]) -> Path:
    """InputError where it is a folder or its folder does not exist."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target} is a folder; give the name of a file, such as {target / 'report.html'}")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: the folder {target.parent} does not exist; make it first")
    return target


def _unwritten(target: Path, error: OSError) -> StorageError:
    return StorageError(
        f"could not write {target}: {error.strerror}; nothing was changed there. Free some space, or "
        "name another file with -o"
    )


def environment() -> Environment:
    """The pages' jinja2 environment: autoescape on, text cleaned, the filters and the style sheet at hand."""
    here = Path(__file__).parent
    made = Environment(
        loader=FileSystemLoader(here),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean_unless_markup,
    )
    for name in _FILTERS:
        made.filters[name] = getattr(wording, name)
    made.globals.update(
        style=Markup((here / "style.css").read_text(encoding="utf-8")),
        headline=headline,
        predict=predict,
        kinds=wording.KIND_ORDER,
        dollar_decimals=wording.dollar_decimals,
        flat_text=_flat_text,
        rows_open=ROWS_OPEN,
        sides_in_a_row=SIDES_IN_A_ROW,
        counts=_counts,
        meaning={name: facts.meaning for name, facts in NAMES.items()},
        cascade=_cascade,
    )
    return made


def _clean_unless_markup(value: Any) -> Any:
    return wording.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _view(
    anchor: str, record: RunRecord, bill: BillView | None, price_models: Sequence[ModelBillView]
) -> RunView:
    header = record.header
    sources = header.recipe_sources
    data_svg = plots.lengths(record, anchor)
    return RunView(
        anchor=anchor,
        record=record,
        bill=bill,
        price_models=price_models,
        plots=list(_plots(record, anchor)),
        data_plot=Plot("Length of records", "template included", Markup(data_svg)) if data_svg else None,
        tiles=list(_tiles(record.measurements)),
        groups=_grouped(record.measurements),
        recipe=[(key, value, sources.get(key, "")) for key, value in wording.flat(header.recipe)],
        environment=list(wording.flat(header.environment)),
        gap=gap_of(record),
    )


def _plots(record: RunRecord, anchor: str) -> Iterable[Plot]:
    for title, note, draw in (
        ("Loss", "lower is better", plots.loss),
        ("Step time", "each optimizer step, events marked", plots.step_time),
        ("Memory", "as sampled", plots.memory),
        ("CPU", "this run and its neighbours", plots.cpu),
        ("Power", "as the device reports it", plots.power),
        ("Temperature", "as the device reports it", plots.temperature),
    ):
        svg = draw(record, anchor)
        if svg is not None and draw is plots.step_time:
            note = headline.steady_text(record.header) or note
        if svg is not None:
            # The SVG is ours; text from data in it is escaped where it is made (svg.py).
            yield Plot(title, note, Markup(svg))


def _tiles(found: Mapping[str, Measurement]) -> Iterable[tuple[str, str, str]]:
    """The few figures worth a glance, where the run has them. Those it could not have are in the table."""
    first, best = (_value(found, f"eval_perplexity_{which}") for which in ("first", "best"))
    if first is not None and best is not None:
        change = f"{first:.1f} → {best:.1f}" if best >= 10 else f"{first:.2f} → {best:.2f}"
        yield "held-out perplexity, first to best", change, f"{first!r} to {best!r}"
    for name, label in (
        ("useful_tokens_per_s", "useful tokens per second"),
        ("mfu_useful", "of the matmul ceiling (MFU, useful)"),
        ("peak_device_bytes", "peak device memory"),
        ("peak_host_bytes", "peak host memory"),
        ("energy_j", "energy"),
    ):
        value = _value(found, name)
        if value is not None:
            unit = found[name].unit
            bare = name == "useful_tokens_per_s"  # its label says the unit
            text = wording.number(value) if bare else wording.quantity(value, unit, name)
            yield label, text, f"{value!r} {unit}"


def _value(found: Mapping[str, Measurement], name: str) -> float | None:
    return found[name].value if name in found else None


def _grouped(found: Mapping[str, Measurement]) -> list[tuple[str, Sequence[tuple[str, Measurement]]]]:
    groups: dict[str, list[tuple[str, Measurement]]] = {name: [] for name, _ in _GROUPS}
    groups[_REST] = []
    for name, measurement in found.items():
        group = next((g for g, marks in _GROUPS if any(mark in name for mark in marks)), _REST)
        groups[group].append((name, measurement))
    return [(name, rows) for name, rows in groups.items() if rows]


def _cascade(bill: BillView) -> list[tuple[Any, float]]:
    """Lines that are not zero, each with where its bar starts, as a share of the whole."""
    rows, start = [], 0.0
    for line in bill.lines:
        if line.seconds or line.usd:
            rows.append((line, start))
            start += line.share
    return rows


def _counts(counts: Mapping[str, int]) -> str:
    return " · ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"


def _flat_text(data: Mapping[str, Any]) -> str:
    return " · ".join(f"{key} {value}" for key, value in wording.flat(data))
