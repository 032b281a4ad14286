"""From what a person calls a run to its record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from trueup.home import find_home

from .output import say

if TYPE_CHECKING:
    from trueup.schema import RunRecord
    from trueup.store import Store

RUN_ARGUMENT = typer.Argument(help="Run: an id, a unique prefix, a name, or `last`.", metavar="RUN")
RUNS_ARGUMENT = typer.Argument(help="Runs: ids, unique prefixes, names, or `last`.", metavar="RUN...")
PRICE_OPTION = typer.Option(
    None, "--usd-per-hour", help="Price of the whole instance, instead of the run's own."
)
PRICE_SOURCE_OPTION = typer.Option(
    "given on the command line", "--price-source", help="Who says so; shown with the bill."
)


@contextmanager
def open_store() -> Iterator[Store]:
    """The store, brought up to date with the run folders. What could not be read is said, not fatal."""
    from trueup.store import Store

    with Store.open(find_home().path) as store:
        for problem in store.sync():
            say(f"note: {problem}")
        yield store


def records_of(refs: list[str], *, samples: bool = False) -> list[RunRecord]:
    """The records of these runs, each once, in the order given."""
    with open_store() as store:
        ids = dict.fromkeys(resolved(store, ref) for ref in refs)
        return [record_of(store, run_id, samples=samples) for run_id in ids]


def resolved(store: Store, ref: str) -> str:
    """The id of the run that is meant. Where a name is several runs', it says which of them was taken."""
    run_id = store.resolve(ref)
    if ref != "last" and not run_id.startswith(ref):
        others = [other for other in store.meant_by(ref) if other != run_id]
        if others:
            what = "was answered" if store.record(run_id).kind == "load" else "trained"
            say(f"note: {ref} is run {run_id}, the only one so named that {what}; not {', '.join(others)}")
    return run_id


def record_of(store: Store, run_id: str, *, samples: bool = False) -> RunRecord:
    """The record of one run; of a run that was killed before it could sum itself up, with what follows from
    its steps."""
    record = store.record(run_id, samples=samples)
    if record.measurements:
        return record
    from trueup.analysis.measure import summarized  # loads numpy

    return summarized(record)


def price_given(usd_per_hour: float | None, source: str) -> Any:
    """The price of the command line, or None."""
    if usd_per_hour is None:
        return None
    from pydantic import ValidationError

    from trueup.schema import InputError, Price
    from trueup.schema.bounds import PER_HOUR

    try:
        return Price(usd_per_hour=usd_per_hour, source=source)
    except ValidationError:
        raise InputError(f"--usd-per-hour {usd_per_hour}: expected a price in dollars, {PER_HOUR}") from None
