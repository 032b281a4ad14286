"""Migrations: from nothing to the newest tables, the same tables the code believes in, all or nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection
from store_records import make_record, write_folder

from trueup.schema import Evaluation, Event, Measurement, SpanTotal, Step, StorageError
from trueup.store import Store, migrate, tables
from trueup.store.database import open_for_writing, writing


def downgraded(connection: Connection, revision: str) -> None:
    from alembic import command

    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


def test_an_empty_file_becomes_the_newest_tables(tmp_path: Path) -> None:
    (tmp_path / "trueup.sqlite").touch()
    with Store.open(tmp_path):
        pass
    engine = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    assert migrate.version_of(engine) == migrate.HEAD
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
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


def test_steps_recorded_before_loss_scaling_were_not_scaled(tmp_path: Path) -> None:
    engine = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    with writing(engine) as connection:
        migrate.run_alembic(connection, "0001")
        connection.exec_driver_sql(
            "INSERT INTO runs (id, name, state, started_at, recipe_digest, header, signature) "
            "VALUES ('a', 'a', 'finished', '2026-01-01', 'd', '{}', 's')"
        )
        connection.exec_driver_sql(
            "INSERT INTO steps (run_id, seq, step, loss, useful_tokens, supervised_tokens, processed_tokens, "
            "head_rows, attention_sum_sq, micro_batches, shape, skipped, labels) "
            "VALUES ('a', 0, 1, 2.5, 1, 1, 1, 1, 1, 1, '[1, 1]', 0, '[]')"
        )
    migrate.migrate(engine)
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT step, loss, loss_scale FROM steps").one()
    assert tuple(row) == (1, 2.5, 1.0)


def test_headers_move_to_their_own_table_with_all_that_belongs_to_a_run(tmp_path: Path) -> None:
    engine = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    with writing(engine) as connection:
        migrate.run_alembic(connection, "0002")
        connection.exec_driver_sql(
            "INSERT INTO runs (id, name, state, started_at, recipe_digest, header, signature) "
            """VALUES ('a', 'a', 'finished', '2026-01-01', 'd', '{"id": "a"}', 's')"""
        )
        connection.exec_driver_sql(
            "INSERT INTO measurements (run_id, name, seq, unit, kind, method, scope) "
            "VALUES ('a', 'wall_s', 0, 's', 'measured', '', 'process')"
        )
    migrate.migrate(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM headers").all() == [("a", '{"id": "a"}')]
        assert connection.exec_driver_sql("SELECT * FROM recipes").all() == [("a", "{}")]
        assert connection.exec_driver_sql("SELECT run_id, name FROM measurements").all() == [("a", "wall_s")]
    with writing(engine) as connection:
        connection.exec_driver_sql("DELETE FROM runs")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM headers").all() == []


def test_recipes_move_out_of_headers_and_back(tmp_path: Path) -> None:
    engine = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    header = '{"id": "a", "steady": {"cv": NaN}, "recipe": {"tune": {"rank": 16}}}'
    with writing(engine) as connection:
        migrate.run_alembic(connection, "0004")
        connection.exec_driver_sql(
            "INSERT INTO runs (id, kind, name, state, started_at, recipe_digest, signature) "
            "VALUES ('a', 'train', 'a', 'finished', '2026-01-01', 'd', 's')"
        )
        connection.exec_driver_sql("INSERT INTO headers VALUES ('a', ?)", (header,))
        migrate.run_alembic(connection, "0005")
        recipes = connection.exec_driver_sql("SELECT * FROM recipes").all()
        assert recipes == [("a", '{"tune": {"rank": 16}}')]
        rest = connection.exec_driver_sql("SELECT header FROM headers").scalar_one()
        assert rest == '{"id": "a", "steady": {"cv": NaN}}'
        downgraded(connection, "0004")
        assert connection.exec_driver_sql("SELECT header FROM headers").scalar_one() == header


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    engine = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE steps (in_the_way INTEGER)")
    with pytest.raises(StorageError, match="already exists"):
        Store.open(tmp_path)
    raw = sqlite3.connect(tmp_path / "trueup.sqlite")
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("steps",)]
    raw.close()


def test_tables_can_be_taken_away_again(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    engine = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    with writing(engine) as connection:
        downgraded(connection, "base")
    assert migrate.version_of(engine) is None
