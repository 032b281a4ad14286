"""The store: what all runs left, in one database, fed from the run folders.

The run folders hold the truth. The database is an index of them that can be deleted and is built again; runs
whose folder was deleted live on in it, without their samples.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from trueup.schema import InputError, RunRecord, StorageError
from trueup.schema.measurement import Frozen
from trueup.schema.run import HEADER_FILE

from .briefs import Brief, briefs, figures_of, headers
from .database import (
    DATABASE_FILE,
    closed_on_error,
    copy_to_memory,
    explained,
    is_refused_by_disk,
    one_of,
    open_for_reading,
    open_for_writing,
    reading,
    writing,
)
from .migrate import HEAD, create_in_memory, migrate, version_of
from .references import began_at, one_meant
from .rows import SERIES, insert, measurement_of, record_of, rows_of, run_row
from .run_folder import read_run_folder
from .selection import Held, selected
from .signatures import has_no_run_yet, is_as_read, run_folders, signature_of

RUNS_FOLDER = "runs"
IMPORTED_FILE = "imported.json"  # in a run folder: it came from another machine, and when
LOCK_TIMEOUT_S = 10.0

_LISTED = (
    "useful_tokens",
    "useful_tokens_per_s",
    "usd_per_million_useful_tokens",
    "usd_per_million_useful_tokens_steady",
    "output_tokens",
    "usd_per_million_output_tokens",
    "eval_perplexity_first",
    "eval_perplexity_best",
)


class RunSummary(Frozen):
    """One row of `runs list`. Figures are the run's stored measurements, None where it has none."""

    id: str
    kind: str = "train"
    name: str
    state: str
    reason: str | None
    started_at: str
    ended_at: str | None
    wall_s: float | None
    model: str | None
    device: str | None
    imported_at: str | None
    useful_tokens: float | None = None
    useful_tokens_per_s: float | None = None
    usd_per_million_useful_tokens: float | None = None
    usd_per_million_useful_tokens_steady: float | None = None
    output_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    eval_perplexity_first: float | None = None
    eval_perplexity_best: float | None = None


class Store:
    """Open with `Store.open`; call `sync` before asking, so that the newest runs are known. For one thread.

    Every method may raise StorageError (locked for too long, full disk, damaged file) that says what to do.
    """

    def __init__(self, home: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
        self.home = home
        self.read_only = read_only
        self._connection = connection
        self._in_memory = False
        self._read: Held = {}  # settings of all runs, as selections asked for them since the last change

    @classmethod
    def open(cls, home: Path, *, read_only: bool = False, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Store:
        """The store of a trueup home, made if absent. A home that cannot be written is opened for reading;
        `store.read_only` tells."""
        file = home / DATABASE_FILE
        read_only = read_only or not _ready_for_writing(home)
        if not read_only:
            try:
                with explained(home):
                    connection = open_for_writing(file, lock_timeout_s)
                    with closed_on_error(connection):
                        migrate(connection)
                return cls(home, connection, read_only=False)
            except StorageError as error:
                if not is_refused_by_disk(error.__cause__):
                    raise
        with explained(home):
            if not file.exists():
                store = cls(home, copy_to_memory(None), read_only=True)
                create_in_memory(store._connection)
                store._in_memory = True
                return store
            store = cls(home, open_for_reading(file, lock_timeout_s), read_only=True)
            with closed_on_error(store._connection):
                at_head = version_of(store._connection) == HEAD
            if not at_head:
                store._move_to_memory()
                migrate(store._connection)
            return store

    def sync(self) -> list[str]:
        """Reads run folders that are new or have changed. Returns what was wrong with those left out.

        On a read-only or full disk the news is kept in memory, for this process only.
        """
        try:
            return self._read_changed_folders()
        except StorageError as error:
            if self.read_only or not is_refused_by_disk(error.__cause__):
                raise
            note = str(error)
        self._connection.close()
        with explained(self.home):
            self._connection = open_for_reading(self.home / DATABASE_FILE, LOCK_TIMEOUT_S)
        self.read_only = True
        return [f"{note} What is new is shown, not kept.", *self._read_changed_folders()]

    def _read_changed_folders(self) -> list[str]:
        self._read.clear()
        with explained(self.home), reading(self._connection) as connection:
            rows = connection.execute("SELECT id, signature, state FROM runs")
            known = {run_id: (signature, state) for run_id, signature, state in rows}
        problems = []
        runs = self.home / RUNS_FOLDER
        for name in run_folders(runs):
            if name in known and is_as_read(f"{runs}/{name}", *known[name]):
                continue
            folder = runs / name
            if has_no_run_yet(folder):
                continue
            try:
                self.ingest(folder)
            except InputError as error:
                problems.append(f"run folder left out: {error}")
        return problems

    def ingest(self, folder: Path) -> str:
        """Reads one run folder into the database, in one transaction; returns the run's id. InputError if it
        is not a run folder or holds another run than its name says."""
        self._read.clear()
        signature = signature_of(str(folder))  # before reading: a change while reading is then seen next time
        record = read_run_folder(folder, samples=False)
        run_id = record.header.id
        if run_id != folder.name:
            raise InputError(f"{folder} holds the run {run_id}; a run folder is named after its run")
        if self.read_only and not self._in_memory:
            self._move_to_memory()
        imported_at = _imported_at(folder)
        try:
            with explained(self.home), writing(self._connection) as connection:
                connection.execute("DELETE FROM runs WHERE id = ?", [run_id])
                row = run_row(record.header, signature=signature, imported_at=imported_at)
                for table, rows in (("runs", [row]), *rows_of(record)):
                    insert(connection, table, rows)
        except (OverflowError, UnicodeError) as error:
            raise InputError(f"{folder} holds a value that the database cannot keep: {error}") from None
        except StorageError as error:
            if isinstance(error.__cause__, sqlite3.DataError | sqlite3.IntegrityError):
                raise InputError(f"{folder} contradicts itself: {error.__cause__}") from None
            raise
        return run_id

    def runs(self, *, among: Collection[str] | None = None, newest: int | None = None) -> list[RunSummary]:
        """All runs, or those whose id is `among` these, newest first; or only so many of the newest."""
        shown = [name for name in RunSummary.model_fields if name not in _LISTED]
        with explained(self.home), reading(self._connection) as connection:
            began = began_at(connection, among)
            ids = sorted(began if among is None else began.keys() & set(among), key=began.__getitem__)
            ids = ids[::-1][:newest]
            these, given = one_of("id", ids)
            found = connection.execute(f"SELECT {', '.join(shown)} FROM runs WHERE {these}", given)
            rows = {row["id"]: row for row in found}
            figures = figures_of(connection, ids, _LISTED)
        columns = (*shown, *figures)
        values = zip(*(map(of_runs.get, ids) for of_runs in figures.values()), strict=True)
        return [
            RunSummary.model_validate(dict(zip(columns, (*rows[run_id], *some), strict=True)))
            for run_id, some in zip(ids, values, strict=True)
        ]

    def meant_by(self, text: str) -> list[str]:
        """The ids of all runs meant by an id, `last`, a name, a pattern of names, conditions or a unique
        prefix of an id, oldest first. InputError where there is none."""
        with explained(self.home), reading(self._connection) as connection:
            exact = connection.execute("SELECT id FROM runs WHERE id = ? OR name = ?", [text, text])
            found = [row["id"] for row in exact] or selected(connection, text, self._read)
            if found and text != "last":
                return sorted(found, key=began_at(connection, found).__getitem__)
        return [self.resolve(text)]

    def briefs(self, ids: Sequence[str], names: Collection[str], known: Collection[str]) -> list[Brief]:
        """These runs without steps, spans, events and samples, each with its measurements called one of
        `names` or anything that is not `known`: quick over hundreds of runs."""
        with explained(self.home), reading(self._connection) as connection:
            return briefs(connection, ids, names, known)

    def resolve(self, ref: str) -> str:
        """The id of the run meant by an id, `last`, a name, or a unique prefix of an id. InputError if there
        is none, or more than one."""
        with explained(self.home), reading(self._connection) as connection:
            return one_meant(connection, ref, self.home)

    def record(self, run_id: str, *, samples: bool = False) -> RunRecord:
        """A run as stored. Samples and requests come from the run folder; they are empty where it is gone."""
        series: dict[str, tuple[Frozen, ...]] = {}
        with explained(self.home), reading(self._connection) as connection:
            header = headers(connection, [run_id]).get(run_id)
            if header is None:
                raise InputError(f"there is no run with the id '{run_id}' in {self.home}")
            of_run = "SELECT * FROM {} WHERE run_id = ? ORDER BY seq"
            rows = connection.execute(of_run.format("measurements"), [run_id])
            measurements = {row["name"]: measurement_of(row) for row in rows}
            for name, model in SERIES.items():
                found = connection.execute(of_run.format(name), [run_id])
                series[name] = tuple(record_of(model, row) for row in found)
        folder = self.home / RUNS_FOLDER / run_id
        parts: dict[str, object] = {"header": header, "measurements": measurements, **series}
        if (samples or header.kind == "load") and (folder / HEADER_FILE).exists():
            read = read_run_folder(folder, samples=samples)
            parts |= {"samples": read.samples, "requests": read.requests}
        return RunRecord.model_validate(parts)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _move_to_memory(self) -> None:
        with explained(self.home):
            memory = copy_to_memory(self._connection)
        self._connection.close()
        self._connection, self._in_memory = memory, True


def _ready_for_writing(home: Path) -> bool:
    """Whether the home is there, made if need be, and can be written."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"TRUEUP_HOME ({home}) is not a folder; set it to one") from None
    except OSError as error:
        raise StorageError(
            f"TRUEUP_HOME ({home}) cannot be made: {error.strerror}; set it to a folder that can be written"
        ) from None
    file = home / DATABASE_FILE
    return os.access(home, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))


def _imported_at(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / IMPORTED_FILE).read_bytes())["imported_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
