"""Brings a database to the newest tables. What does so is loaded only when there is something to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.schema import StorageError

from .database import commit

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection

REVISIONS = ("0001", "0002", "0003", "0004", "0005")  # oldest first; one file each in migrations/versions
HEAD = REVISIONS[-1]
MIGRATIONS = Path(__file__).parent / "migrations"


def version_of(connection: sqlite3.Connection) -> str | None:
    """The revision a database is at; None for one without tables. StorageError if newer than this code."""
    has_version = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
    known = connection.execute(has_version).fetchone()
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if known else None
    version = str(row[0]) if row else None
    if version is not None and version not in REVISIONS:
        raise StorageError(
            f"the database was written by a newer trueup (its tables are at {version}, this one knows up to "
            f"{HEAD}): update trueup, or set TRUEUP_HOME to another folder"
        )
    return version


def migrate(connection: sqlite3.Connection, revision: str = HEAD) -> None:
    """Up to a revision, in one transaction: it is done wholly or not at all."""
    if version_of(connection) == revision:
        return
    with for_alembic(connection) as config:
        from alembic import command

        command.upgrade(config, revision)


def create_in_memory(connection: sqlite3.Connection) -> None:
    """The newest tables, without Alembic, for a database that does not outlive the process."""
    with _lent(connection) as lent:
        from .tables import metadata

        metadata.create_all(lent)


@contextmanager
def for_alembic(connection: sqlite3.Connection) -> Iterator[Config]:
    """What Alembic's commands take, for one transaction on this connection."""
    from alembic.config import Config

    with _lent(connection) as lent:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = lent
        yield config


@contextmanager
def _lent(connection: sqlite3.Connection) -> Iterator[Connection]:
    """The connection as SQLAlchemy has it, in a transaction that holds the write lock from the first."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    rows_as, connection.row_factory = connection.row_factory, None  # SQLAlchemy names columns itself
    try:
        with engine.connect() as lent:  # rolls back what was not committed
            lent.exec_driver_sql("BEGIN IMMEDIATE")
            yield lent
            commit(connection)
    except DBAPIError as error:
        raise error.orig or error from error
    finally:
        connection.row_factory = rows_as
