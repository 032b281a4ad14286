"""Recorded runs for Python programs: plain frozen records, and tables of them where pandas is installed.

Names here are offered by `trueup` itself: `trueup.runs()`, `trueup.run("last")`, `trueup.bill("last")`. Each
call reads what is new in the home first, as the commands do. What a run folder has wrong is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from trueup.analysis.bill import Bill, make_bill
from trueup.home import find_home
from trueup.schema import Frozen, InputError, MissingExtraError, Price, RunRecord
from trueup.store import RunSummary, Store

__all__ = ["Bill", "Records", "RunRecord", "RunSummary", "bill", "run", "runs"]

Record = TypeVar("Record", bound=Frozen)
HomePath = str | PathLike[str] | None


class Records(tuple[Record, ...]):
    """Records in order: a tuple that can become a table. Any series of a record can be one too:
    `trueup.Records(trueup.run("last").steps).to_pandas()`."""

    __slots__ = ()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame, a row for each record and a column for each field, in order; None becomes
        a missing value. Raises MissingExtraError without pandas, which trueup does not depend on."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("pandas", "pandas", "a DataFrame") from None
        columns = list(type(self[0]).model_fields) if self else None
        return pd.DataFrame([record.model_dump() for record in self], columns=columns)


def runs(*, home: HomePath = None) -> Records[RunSummary]:
    """Every run of the home, newest first, as `trueup runs list` shows them.

    `home` is a trueup home, by default TRUEUP_HOME or the platform's. Raises InputError or StorageError.
    """
    with _store(home) as store:
        return Records(store.runs())


def run(ref: str, *, home: HomePath = None, samples: bool = False) -> RunRecord:
    """The record of one run: header, spans, events, steps, evaluations, measurements.

    Of a run that was killed before it could sum itself up, the measurements are what follows from its steps.

    `ref` is an id, a unique prefix of one, a name, or "last". Sensor readings are read only with `samples`.
    Raises InputError where there is no such run.
    """
    with _store(home) as store:
        record = store.record(store.resolve(ref), samples=samples)
    if record.measurements:
        return record
    from trueup.analysis.measure import summarized  # loads numpy, which few calls need

    return summarized(record)


def bill(
    ref: str,
    *,
    usd_per_hour: float | None = None,
    price_source: str = "given to trueup.bill",
    home: HomePath = None,
) -> Bill:
    """What every dollar of a run bought, at its own price or at `usd_per_hour` of the whole instance.

    Raises InputError where there is no such run, or no price above zero.
    """
    record = run(ref, home=home)
    if usd_per_hour is None:
        return make_bill(record)
    if not 0 < usd_per_hour < float("inf"):
        raise InputError(f"usd_per_hour={usd_per_hour}: a price is a positive number of dollars")
    return make_bill(record, Price(usd_per_hour=usd_per_hour, source=price_source))


@contextmanager
def _store(home: HomePath) -> Iterator[Store]:
    path = find_home().path if home is None else Path(home).expanduser().absolute()
    with Store.open(path) as store:
        for problem in store.sync():
            warnings.warn(problem, stacklevel=4)
        yield store
