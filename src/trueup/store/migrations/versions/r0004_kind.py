"""The kind of a run. What was recorded before load runs were is training."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"


def upgrade() -> None:
    op.add_column("runs", sa.Column("kind", sa.Text, nullable=False, server_default="train"))


def downgrade() -> None:
    op.drop_column("runs", "kind")
