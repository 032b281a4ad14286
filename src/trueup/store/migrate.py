"""Brings a database to the newest tables. Alembic is loaded only when there is something to do."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import Connection, Engine

from trueup.schema import StorageError

from .database import writing
from .tables import metadata

REVISIONS = ("0001", "0002", "0003", "0004", "0005")  # oldest first; one file each in migrations/versions
HEAD = REVISIONS[-1]
MIGRATIONS = Path(__file__).parent / "migrations"


def version_of(engine: Engine) -> str | None:
    """The revision a database is at; None for one without tables. StorageError if newer than this code."""
    with engine.connect() as connection:
        has_version = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
        known = connection.exec_driver_sql(has_version).first()
        row = connection.exec_driver_sql("SELECT version_num FROM alembic_version").first() if known else None
    version = str(row[0]) if row else None
    if version is not None and version not in REVISIONS:
        raise StorageError(
            f"the database was written by a newer trueup (its tables are at {version}, this one knows up to "
            f"{HEAD}): update trueup, or set TRUEUP_HOME to another folder"
        )
    return version


def migrate(engine: Engine) -> None:
    """To the newest revision, in one transaction: it is done wholly or not at all."""
    if version_of(engine) == HEAD:
        return
    with writing(engine) as connection:
        run_alembic(connection)


def create_in_memory(engine: Engine) -> None:
    """The newest tables, without Alembic, for a database that does not outlive the process."""
    with writing(engine) as connection:
        metadata.create_all(connection)


def run_alembic(connection: Connection, revision: str = "head") -> None:
    """Alembic's upgrade on a connection whose transaction the caller holds."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
