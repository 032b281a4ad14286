"""The loss scale of each step. Steps recorded before it was kept were not scaled: 1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"


def upgrade() -> None:
    op.add_column("steps", sa.Column("loss_scale", sa.Float))
    op.execute("UPDATE steps SET loss_scale = 1.0")


def downgrade() -> None:
    op.drop_column("steps", "loss_scale")
