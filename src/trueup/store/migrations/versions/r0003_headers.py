"""Headers in a table of their own: lists of runs read small rows, not past everything a run was about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    op.create_table(
        "headers",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("header", sa.JSON, nullable=False),
    )
    op.execute("INSERT INTO headers (run_id, header) SELECT id, header FROM runs")
    op.drop_column("runs", "header")


def downgrade() -> None:
    op.add_column("runs", sa.Column("header", sa.JSON, nullable=False, server_default="{}"))
    op.execute("UPDATE runs SET header = (SELECT header FROM headers WHERE headers.run_id = runs.id)")
    op.drop_table("headers")
