"""Opens SQLite the way trueup needs it, and turns its errors into ones a person can act on.

Write-ahead log: readers never wait for a writer. Every write transaction takes its lock at the start
(BEGIN IMMEDIATE), so two writers queue up instead of failing half-way.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from trueup.schema import StorageError

DATABASE_FILE = "trueup.sqlite"
_WRITES = "trueup_writes"


def open_for_writing(file: Path, lock_timeout_s: float) -> Engine:
    """The database file, made if absent, in WAL mode where the file system can do it."""
    engine = _engine(partial(_connect, file, "rwc", lock_timeout_s))
    with closed_on_error(engine), engine.connect() as connection:
        raw = _sqlite(connection)
        if raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.rollback()
            _switch_to_wal(raw, lock_timeout_s)
    return engine


def open_for_reading(file: Path, lock_timeout_s: float) -> Engine:
    """The database file, never changed. On a read-only or full disk SQLite may be unable to make the log's
    index; then nobody else is writing either, and the file is read as it stands."""
    writable = os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    as_it_stands = "ro&immutable=1"
    for mode in ("rw" if writable else "ro", as_it_stands):
        engine = _engine(partial(_connect, file, mode, lock_timeout_s, query_only=True))
        try:
            with closed_on_error(engine), engine.connect() as connection:
                connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").fetchone()
            return engine
        except DBAPIError as error:
            if mode == as_it_stands or not is_refused_by_disk(error):
                raise
    raise AssertionError("unreachable: the last mode returns or raises")


def copy_to_memory(source: Engine | None) -> Engine:
    """A database in memory with the content of `source`, or empty."""
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    memory.execute("PRAGMA foreign_keys = ON")
    if source is not None:
        with source.connect() as connection:
            connection.rollback()
            _sqlite(connection).backup(memory)
    return _engine(lambda: memory)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that holds the write lock from its first moment."""
    with engine.execution_options(**{_WRITES: True}).begin() as connection:
        yield connection


@contextmanager
def closed_on_error(engine: Engine) -> Iterator[None]:
    """Closes the engine's connection if what is done with it fails, so that the file can be moved away."""
    try:
        yield
    except BaseException:
        engine.dispose()
        raise


@contextmanager
def explained(home: Path) -> Iterator[None]:
    """Turns database errors into StorageError with what to do; `home` is named as TRUEUP_HOME."""
    try:
        yield
    except (sqlite3.Error, DBAPIError) as error:
        raise StorageError(_explanation(error, home)) from error


def error_name(error: sqlite3.Error | DBAPIError) -> str:
    """SQLite's own name of the error, such as SQLITE_BUSY; empty where it has none."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(origin, "sqlite_errorname", ""))


def is_refused_by_disk(error: BaseException | None) -> bool:
    """Whether the disk would not let SQLite write, being full or read-only."""
    kinds = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")
    return isinstance(error, sqlite3.Error | DBAPIError) and error_name(error).startswith(kinds)


def _explanation(error: sqlite3.Error | DBAPIError, home: Path) -> str:
    file, name = home / DATABASE_FILE, error_name(error)
    kept = f"Nothing is lost: the run folders in {home / 'runs'} hold the truth"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"{file} is locked by another process. {kept}. Try again when that process is done."
    if name.startswith("SQLITE_FULL"):
        return f"the disk that holds TRUEUP_HOME ({home}) is full. {kept}. Free some space and try again."
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return (
            f"{file} is damaged or is not a database. {kept}. Rename it (mv {file} {file}.damaged); "
            "the next command builds it again from them."
        )
    if name.startswith("SQLITE_READONLY"):
        return f"{file} cannot be written. Set TRUEUP_HOME ({home}) to a folder that can."
    origin = error.orig if isinstance(error, DBAPIError) else error
    return f"{file} could not be read or written ({origin}). {kept}. Check TRUEUP_HOME ({home}) and its disk."


def _engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    # One connection, kept: when the last one closes, SQLite moves its log into the file and waits for it.
    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # sqlite3 would begin by itself, late and without the lock; isolation_level=None leaves it to us.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _connect(file: Path, mode: str, lock_timeout_s: float, *, query_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(file))}?mode={mode}",
        uri=True,
        timeout=lock_timeout_s,  # SQLite's busy_timeout
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    if query_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def _sqlite(connection: Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def _switch_to_wal(raw: sqlite3.Connection, lock_timeout_s: float) -> None:
    """SQLite does not wait for its lock when it changes the journal, so this does."""
    deadline = time.monotonic() + lock_timeout_s
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if not error_name(error).startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
