"""Recorded runs for Python programs: plain frozen records, and tables of them where pandas is installed.

Names here are offered by `trueup` itself: `trueup.runs()`, `trueup.run("last")`, `trueup.bill("last")`. Each
call reads what is new in the home first, as the commands do. What a run folder has wrong is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from trueup.analysis.asked_prices import asked_price, price_request
from trueup.analysis.bill import Bill, make_bill, one_off_given
from trueup.analysis.budget import budget_given
from trueup.analysis.comparable import ComparedRun
from trueup.analysis.compare import Comparison, group_of
from trueup.analysis.compare import compare as compare_groups
from trueup.analysis.energy_cost import tariff_given
from trueup.analysis.side_by_side import AskedPrice, ModelBill, as_billed, under_models
from trueup.catalog import PriceBook, published_prices
from trueup.home import find_home
from trueup.schema import Frozen, InputError, MissingExtraError, OwnedTerms, Price, RunRecord
from trueup.schema.bounds import PER_HOUR
from trueup.store import RunSummary, Store
from trueup.store.price_file import PriceFile, standing

__all__ = [
    "Bill",
    "Comparison",
    "ModelBill",
    "PricedBill",
    "Records",
    "RunRecord",
    "RunSummary",
    "bill",
    "compare",
    "run",
    "runs",
]

Record = TypeVar("Record", bound=Frozen)
HomePath = str | PathLike[str] | None


class Records(tuple[Record, ...]):
    """Records in order: a tuple that can become a table. Any series of a record can be one too:
    `trueup.Records(trueup.run("last").steps).to_pandas()`."""

    __slots__ = ()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame, a row for each record and a column for each field, in order; None becomes
        a missing value. Raises MissingExtraError without pandas, which trueup does not depend on, and
        InputError where something in it is no record."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("pandas", "pandas", "a DataFrame") from None
        for one in self:
            if not isinstance(one, Frozen):
                raise InputError(
                    f"a table has a row for each record, and {one!r} is none: give trueup.Records a series "
                    "of records, such as trueup.run('last').steps"
                )
        columns = list(type(self[0]).model_fields) if self else None
        return pd.DataFrame([record.model_dump() for record in self], columns=columns)


class PricedBill(Bill):
    """A bill, and in `price_models` the same work under other prices, its own first; empty where none was
    asked for."""

    price_models: tuple[ModelBill, ...] = ()


def runs(*, home: HomePath = None) -> Records[RunSummary]:
    """Every run of the home, newest first, as `trueup runs list` shows them.

    `home` is a trueup home, by default TRUEUP_HOME or the platform's. Raises InputError where a home that is
    named is not there, or StorageError.
    """
    with _store(home) as store:
        return Records(store.runs())


def run(ref: str, *, home: HomePath = None, samples: bool = False) -> RunRecord:
    """The record of one run: header, spans, events, steps, evaluations, measurements.

    Of a run that was killed before it could sum itself up, the measurements are what follows from its steps.

    `ref` is an id, a unique prefix of one, a name, or "last". Sensor readings are read only with `samples`.
    Raises InputError where there is no such run.
    """
    if not isinstance(ref, str):
        raise InputError(f"ref={ref!r}: a run is named by a string, its id, its name or 'last'")
    with _store(home) as store:
        record = store.record(store.resolve(ref), samples=samples)
    if record.measurements:
        return record
    from trueup.analysis.measure import summarized  # loads numpy, which few calls need

    return summarized(record)


def bill(
    ref: str,
    *,
    prices: Iterable[str | OwnedTerms] = (),
    usd_per_hour: float | None = None,
    price_source: str = "given to trueup.bill",
    one_off: float | None = None,
    over: int = 1,
    budget: float | None = None,
    tariff: float | None = None,
    estimate_energy: bool = False,
    home: HomePath = None,
) -> PricedBill:
    """What every dollar of a run bought, at its own price or at `usd_per_hour` of the whole instance.

    `prices`: what it would be under these too, each as `trueup bill --price` has it ("spot",
    "reserved-3y=8.20,utilisation=0.7"), or the terms of a machine of one's own.

    `one_off`: dollars spent once, spread `over` so many runs. `budget`, in dollars per million useful tokens,
    is what the bill is held to, and `tariff` is in dollars per kWh; both by default the recipe's.
    `estimate_energy`: by the chips' TDP, where there is no meter. Raises InputError where there is no such
    run, or no price above zero.
    """
    given = "given to trueup.bill"
    price = None if usd_per_hour is None else _price(usd_per_hour, price_source)
    once = None if one_off is None else one_off_given(one_off, over, given)
    held_to = None if budget is None else budget_given(budget, given)
    at = None if tariff is None else tariff_given(tariff, given)
    asked = _asked(prices)
    record = run(ref, home=home)
    made = make_bill(record, price, one_off=once, budget=held_to, tariff=at, estimate_energy=estimate_energy)
    models = () if not asked else under_models(made, record.header, _models(made, record, asked, home), once)
    return PricedBill(**dict(made), price_models=models)


def _asked(prices: Any) -> list[str | OwnedTerms]:
    """Judged before the run is read."""
    if isinstance(prices, str) or not isinstance(prices, Iterable):
        raise InputError(f"prices={prices!r}: a list of price models is needed, such as ['spot']")
    asked = list(prices)
    for one in asked:
        if not isinstance(one, str | OwnedTerms):
            raise InputError(f"prices: {one!r} is no price model; give text such as 'spot', or OwnedTerms")
        if isinstance(one, str) and price_request(one).name == "owned":
            raise InputError(f"prices: {one}: give the machine itself, a trueup.schema.OwnedTerms")
    return asked


def _models(
    made: Bill, record: RunRecord, asked: Iterable[str | OwnedTerms], home: HomePath
) -> list[AskedPrice]:
    entries = PriceFile(find_home().path if home is None else _named(home)).entries()
    book = PriceBook(
        own=standing(entries, "own"),
        collected=standing(entries, "collected"),
        published=published_prices(),
    )
    found = [as_billed(made)]
    for one in asked:
        if isinstance(one, str):
            found.append(asked_price(price_request(one), record, book))
        else:
            found.append(AskedPrice(label=f"owned ({one.source})", terms=one))
    return found


def compare(
    *selections: str,
    by: str | None = None,
    allow_difference: Iterable[str] = (),
    at_perplexity: float | None = None,
    home: HomePath = None,
) -> Comparison:
    """Which of several groups of runs is cheaper, by how much, and how sure that is, as `trueup compare` has
    it: each selection is a run, a name, a pattern, conditions, a bundle or a folder of bundles.

    Raises InputError where a selection means no run, or runs differ in what is not being compared.
    """
    with _store(home) as store:
        groups = [group_of(text, _meant(store, text)) for text in selections]
    return compare_groups(groups, by=by, allowed=allow_difference, at_perplexity=at_perplexity)


def _meant(store: Store, text: str) -> list[ComparedRun]:
    from trueup.store.bundle import bundled

    found = bundled(text)
    if found is not None:
        return [ComparedRun.of(record) for record in found]
    return [ComparedRun.of(store.record(run_id)) for run_id in store.meant_by(text)]


def _price(usd_per_hour: Any, source: Any) -> Price:
    """Judged before the run is read: a program's mistake should not wait for the disk."""
    if isinstance(usd_per_hour, bool) or not isinstance(usd_per_hour, Real):
        raise InputError(f"usd_per_hour={usd_per_hour!r}: a price is a number of dollars, such as 1.34375")
    if not PER_HOUR.hold(cast("float", usd_per_hour)):
        raise InputError(f"usd_per_hour={usd_per_hour!r}: a price of an hour is {PER_HOUR}, in dollars")
    if not isinstance(source, str):
        raise InputError(f"price_source={source!r}: a string is needed that says where the price is from")
    return Price(usd_per_hour=float(usd_per_hour), source=source)


@contextmanager
def _store(home: HomePath) -> Iterator[Store]:
    path = find_home().path if home is None else _named(home)
    with Store.open(path) as store:
        for problem in store.sync():
            warnings.warn(problem, stacklevel=4)
        yield store


def _named(home: Any) -> Path:
    """A home named by a program is there already: a mistyped one must not be made."""
    if not isinstance(home, str | PathLike) or not str(home):
        raise InputError(f"home={home!r}: a home is the path of a folder")
    path = Path(home).expanduser().absolute()
    if not path.is_dir():
        found = "is not a folder" if path.exists() else "does not exist"
        raise InputError(f"home={str(home)!r}: {path} {found}; name the home that holds the runs")
    return path
