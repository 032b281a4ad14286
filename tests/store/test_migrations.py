"""Migrations: from nothing to the newest tables, the same tables the code believes in, all or nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from store_records import make_record, write_folder

from trueup.schema import Evaluation, Event, Measurement, SpanTotal, Step, StorageError
from trueup.store import Store, migrate, tables
from trueup.store.database import open_for_writing, writing


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    yield connection
    connection.close()


def rows(database: sqlite3.Connection, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in database.execute(query)]


def test_an_empty_file_becomes_the_newest_tables(tmp_path: Path) -> None:
    (tmp_path / "trueup.sqlite").touch()
    with Store.open(tmp_path):
        pass
    database = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    assert migrate.version_of(database) == migrate.HEAD
    with migrate.for_alembic(database) as config:
        lent = config.attributes["connection"]
        context = MigrationContext.configure(lent, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
    database.close()
    raw = sqlite3.connect(tmp_path / "trueup.sqlite")
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    raw.close()


def test_the_revisions_named_in_the_code_are_those_in_the_folder() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [migrate.HEAD]
    assert tuple(r.revision for r in script.walk_revisions())[::-1] == migrate.REVISIONS


def test_every_field_of_a_record_has_its_column() -> None:
    pairs = [
        (tables.spans, SpanTotal),
        (tables.events, Event),
        (tables.steps, Step),
        (tables.evaluations, Evaluation),
    ]
    for table, model in pairs:
        assert {column.name for column in table.columns} - {"run_id", "seq"} == set(model.model_fields)
    split = (set(Measurement.model_fields) - {"ci"}) | {"ci_low", "ci_high", "name"}
    assert {column.name for column in tables.measurements.columns} - {"run_id", "seq"} == split


def test_a_database_of_a_newer_trueup_is_left_alone(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    raw = sqlite3.connect(tmp_path / "trueup.sqlite")
    with raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    for read_only in (False, True):
        with pytest.raises(StorageError, match=r"newer trueup.*9999.*update trueup"):
            Store.open(tmp_path, read_only=read_only)
    assert raw.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)
    raw.close()


def test_an_older_database_is_read_without_being_changed(tmp_path: Path) -> None:
    (tmp_path / "trueup.sqlite").touch()
    write_folder(tmp_path, *make_record())
    with Store.open(tmp_path, read_only=True) as store:
        store.sync()
        assert len(store.runs()) == 1
    assert (tmp_path / "trueup.sqlite").stat().st_size == 0


def test_steps_recorded_before_loss_scaling_were_not_scaled(database: sqlite3.Connection) -> None:
    migrate.migrate(database, "0001")
    with writing(database):
        database.execute(
            "INSERT INTO runs (id, name, state, started_at, recipe_digest, header, signature) "
            "VALUES ('a', 'a', 'finished', '2026-01-01', 'd', '{}', 's')"
        )
        database.execute(
            "INSERT INTO steps (run_id, seq, step, loss, useful_tokens, supervised_tokens, processed_tokens, "
            "head_rows, attention_sum_sq, micro_batches, shape, skipped, labels) "
            "VALUES ('a', 0, 1, 2.5, 1, 1, 1, 1, 1, 1, '[1, 1]', 0, '[]')"
        )
    migrate.migrate(database)
    assert rows(database, "SELECT step, loss, loss_scale FROM steps") == [(1, 2.5, 1.0)]


def test_headers_move_to_their_own_table_with_all_that_belongs_to_a_run(database: sqlite3.Connection) -> None:
    migrate.migrate(database, "0002")
    with writing(database):
        database.execute(
            "INSERT INTO runs (id, name, state, started_at, recipe_digest, header, signature) "
            """VALUES ('a', 'a', 'finished', '2026-01-01', 'd', '{"id": "a"}', 's')"""
        )
        database.execute(
            "INSERT INTO measurements (run_id, name, seq, unit, kind, method, scope) "
            "VALUES ('a', 'wall_s', 0, 's', 'measured', '', 'process')"
        )
    migrate.migrate(database)
    assert rows(database, "SELECT * FROM headers") == [("a", '{"id": "a"}')]
    assert rows(database, "SELECT * FROM recipes") == [("a", "{}")]
    assert rows(database, "SELECT run_id, name FROM measurements") == [("a", "wall_s")]
    with writing(database):
        database.execute("DELETE FROM runs")
    assert rows(database, "SELECT * FROM headers") == []


def test_recipes_move_out_of_headers_and_back(database: sqlite3.Connection) -> None:
    header = '{"id": "a", "steady": {"cv": NaN}, "recipe": {"tune": {"rank": 16}}}'
    migrate.migrate(database, "0004")
    with writing(database):
        database.execute(
            "INSERT INTO runs (id, kind, name, state, started_at, recipe_digest, signature) "
            "VALUES ('a', 'train', 'a', 'finished', '2026-01-01', 'd', 's')"
        )
        database.execute("INSERT INTO headers VALUES ('a', ?)", (header,))
    migrate.migrate(database, "0005")
    assert rows(database, "SELECT * FROM recipes") == [("a", '{"tune": {"rank": 16}}')]
    assert rows(database, "SELECT header FROM headers") == [('{"id": "a", "steady": {"cv": NaN}}',)]
    with migrate.for_alembic(database) as config:
        command.downgrade(config, "0004")
    assert rows(database, "SELECT header FROM headers") == [(header,)]


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "trueup.sqlite")
    raw.execute("CREATE TABLE steps (in_the_way INTEGER)")
    raw.close()
    with pytest.raises(StorageError, match="already exists"):
        Store.open(tmp_path)
    raw = sqlite3.connect(tmp_path / "trueup.sqlite")
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("steps",)]
    raw.close()


def test_tables_can_be_taken_away_again(database: sqlite3.Connection) -> None:
    migrate.migrate(database)
    with migrate.for_alembic(database) as config:
        command.downgrade(config, "base")
    assert migrate.version_of(database) is None
