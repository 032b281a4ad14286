"""Opens SQLite the way trueup needs it, and turns its errors into ones a person can act on.

Write-ahead log: readers never wait for a writer. Every write transaction takes its lock at the start
(BEGIN IMMEDIATE), so two writers queue up instead of failing half-way.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from trueup.schema import StorageError

DATABASE_FILE = "trueup.sqlite"
AT_ONCE = 500  # values in one query: SQLite takes a limited number of them


def open_for_writing(file: Path, lock_timeout_s: float) -> sqlite3.Connection:
    """The database file, made if absent, in WAL mode where the file system can do it."""
    connection = _connect(file, "rwc", lock_timeout_s)
    with closed_on_error(connection):
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            _switch_to_wal(connection, lock_timeout_s)
    return connection


def open_for_reading(file: Path, lock_timeout_s: float) -> sqlite3.Connection:
    """The database file, never changed. On a read-only or full disk SQLite may be unable to make the log's
    index; then nobody else is writing either, and the file is read as it stands."""
    writable = os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    as_it_stands = "ro&immutable=1"
    for mode in ("rw" if writable else "ro", as_it_stands):
        connection = _connect(file, mode, lock_timeout_s)
        try:
            with closed_on_error(connection):
                connection.execute("PRAGMA query_only = ON")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
        except sqlite3.Error as error:
            if mode == as_it_stands or not is_refused_by_disk(error):
                raise
    raise AssertionError("unreachable: the last mode returns or raises")


def copy_to_memory(source: sqlite3.Connection | None) -> sqlite3.Connection:
    """A database in memory with the content of `source`, or empty."""
    memory = _prepared(sqlite3.connect(":memory:", isolation_level=None))
    if source is not None:
        source.backup(memory)
    return memory


@contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction: every query in it sees the database in one state, whatever others write meanwhile."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.rollback()


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that holds the write lock from its first moment."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        commit(connection)
    except BaseException:
        connection.rollback()
        raise


def marks(values: Collection[object]) -> str:
    """As many placeholders."""
    return ", ".join("?" * len(values))


def one_of(column: str, values: Collection[str] | None) -> tuple[str, list[str]]:
    """A condition of a query and what it takes. Where the values are too many for a query, or None, every row
    meets it."""
    if values is None or len(values) > AT_ONCE:
        return "true", []
    return f"{column} IN ({marks(values)})", list(values)


def commit(connection: sqlite3.Connection) -> None:
    """The end of every transaction that writes."""
    connection.commit()


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Closes the connection if what is done with it fails, so that the file can be moved away."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def explained(home: Path) -> Iterator[None]:
    """Turns database errors into StorageError with what to do; `home` is named as TRUEUP_HOME."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(_explanation(error, home)) from error


def is_refused_by_disk(error: BaseException | None) -> bool:
    """Whether the disk would not let SQLite write, being full or read-only."""
    kinds = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")
    return isinstance(error, sqlite3.Error) and _name(error).startswith(kinds)


def _name(error: sqlite3.Error) -> str:
    """SQLite's own name of the error, such as SQLITE_BUSY; empty where it has none."""
    return str(getattr(error, "sqlite_errorname", ""))


def _explanation(error: sqlite3.Error, home: Path) -> str:
    file, name = home / DATABASE_FILE, _name(error)
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
    return f"{file} could not be read or written ({error}). {kept}. Check TRUEUP_HOME ({home}) and its disk."


def _connect(file: Path, mode: str, lock_timeout_s: float) -> sqlite3.Connection:
    return _prepared(
        sqlite3.connect(
            f"file:{quote(str(file))}?mode={mode}",
            uri=True,
            timeout=lock_timeout_s,  # SQLite's busy_timeout
            isolation_level=None,  # sqlite3 would begin by itself, late and without the lock
        )
    )


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _switch_to_wal(connection: sqlite3.Connection, lock_timeout_s: float) -> None:
    """SQLite does not wait for its lock when it changes the journal, so this does."""
    deadline = time.monotonic() + lock_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if not _name(error).startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
