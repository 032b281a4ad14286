"""Recipes in a table of their own: to ask all runs for a setting reads a sixth of what their headers hold."""

from __future__ import annotations

import json
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"

_AT_ONCE = 500


def upgrade() -> None:
    op.create_table(
        "recipes",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("recipe", sa.JSON, nullable=False),
    )
    connection = op.get_bind()
    for ids in _parts(connection):
        for run_id, text in _of(connection, ids):
            header = json.loads(text)  # and not SQLite's functions, which refuse a NaN
            _set(connection, "INSERT INTO recipes VALUES (:run, :text)", run_id, header.pop("recipe", {}))
            _set(connection, "UPDATE headers SET header = :text WHERE run_id = :run", run_id, header)


def downgrade() -> None:
    connection = op.get_bind()
    for ids in _parts(connection):
        for run_id, text in _of(connection, ids):
            recipe = connection.exec_driver_sql("SELECT recipe FROM recipes WHERE run_id = ?", (run_id,))
            header = json.loads(text) | {"recipe": json.loads(recipe.scalar_one())}
            _set(connection, "UPDATE headers SET header = :text WHERE run_id = :run", run_id, header)
    op.drop_table("recipes")


def _parts(connection: sa.Connection) -> Iterator[list[str]]:
    ids = list(connection.exec_driver_sql("SELECT run_id FROM headers").scalars())
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))


def _of(connection: sa.Connection, ids: list[str]) -> list[tuple[str, str]]:
    query = sa.text("SELECT run_id, header FROM headers WHERE run_id IN :ids")
    found = connection.execute(query.bindparams(sa.bindparam("ids", expanding=True)), {"ids": ids})
    return [(run_id, text) for run_id, text in found]


def _set(connection: sa.Connection, statement: str, run_id: str, content: object) -> None:
    connection.execute(sa.text(statement), {"run": run_id, "text": json.dumps(content)})
