"""`trueup breakeven A B`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trueup.schema import InputError

from .money import (
    DEBUG_HOURS_OPTION,
    DEBUG_RATE_OPTION,
    ONE_OFF_OPTION,
    asked_prices,
    one_off_asked,
    requests_given,
)
from .output import JSON_OPTION, print_json, print_rich, say
from .records import PRICE_OPTION, PRICE_SOURCE_OPTION, open_store, price_given, record_of

if TYPE_CHECKING:
    from trueup.analysis.moving import RunCost
    from trueup.schema import Price, RunRecord
    from trueup.store import Store

_SIDE = (
    "Runs: an id, `last`, a name, a pattern of names ('demo-*'), conditions ('platform=cpu'), a bundle, or a "
    "folder of bundles."
)


def breakeven(
    a: str = typer.Argument(help=f"What is moved from. {_SIDE}", metavar="A"),
    b: str = typer.Argument(help="What is moved to, likewise.", metavar="B"),
    one_off: float | None = ONE_OFF_OPTION,
    debug_hours: float | None = DEBUG_HOURS_OPTION,
    usd_per_debug_hour: float | None = DEBUG_RATE_OPTION,
    price_a: str | None = typer.Option(
        None, "--price-a", metavar="MODEL", help="Price of A, as `bill --price`; default the runs' own."
    ),
    price_b: str | None = typer.Option(None, "--price-b", metavar="MODEL", help="Price of B, likewise."),
    usd_per_hour: float | None = PRICE_OPTION,
    price_source: str = PRICE_SOURCE_OPTION,
    tokens_per_run: float | None = typer.Option(
        None, "--tokens-per-run", help="Useful tokens of a full run, where those of A and B differ in size."
    ),
    allow_difference: list[str] = typer.Option(
        [], "--allow-difference", metavar="KEY", help="Compare though this differs, as `compare` has it."
    ),
    out: Path | None = typer.Option(None, "-o", "--output", help="Also write one page with the picture."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Say after how many full runs moving from A to B has paid for itself."""
    once = one_off_asked(one_off, debug_hours, usd_per_debug_hour, over=1)
    if once is None:
        raise InputError("what the move costs once is needed: --one-off USD, or --debug-hours with its rate")
    from trueup.analysis.comparable import ComparedRun, require_comparable
    from trueup.analysis.compare import group_of
    from trueup.analysis.moving import break_even_of

    price = price_given(usd_per_hour, price_source)
    with open_store() as store:
        records = {text: records_meant(store, text) for text in (a, b)}
    side_a, side_b = (group_of(text, [ComparedRun.of(one) for one in records[text]]) for text in (a, b))
    require_comparable([side_a, side_b], allow_difference)
    costs = _costs(records[a], price_a, price) | _costs(records[b], price_b, price)
    found = break_even_of(side_a, side_b, costs, once.usd, source=once.source, tokens_per_run=tokens_per_run)
    if out is not None:
        from trueup.report.breakeven import page
        from trueup.report.html import write

        write(out, page(found))
        say(f"wrote {out}")
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    from trueup.report.breakeven import breakeven_text

    print_rich(breakeven_text(found))


def records_meant(store: Store, text: str) -> list[RunRecord]:
    """The runs a selection means, oldest first; of a bundle, or a folder of bundles, those in it."""
    from trueup.store.bundle import bundled

    found = bundled(text)
    if found is not None:
        return found
    return [record_of(store, run_id) for run_id in store.meant_by(text)]


def _costs(records: list[RunRecord], model: str | None, price: Price | None) -> dict[str, RunCost]:
    """What each run cost all in, under a price model or at its own price."""
    from trueup.analysis.compare import FINISHED
    from trueup.analysis.moving import run_cost

    asked_of = asked_prices(requests_given([model] if model else []))
    costs = {}
    for record in records:
        try:
            costs[record.header.id] = run_cost(record, price, next(iter(asked_of(record)), None))
        except InputError:
            if record.header.state == FINISHED:
                raise
    return costs
