"""First tables: runs and what belongs to each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("wall_s", sa.Float),
        sa.Column("recipe_digest", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("device", sa.Text),
        sa.Column("header", sa.JSON, nullable=False),
        sa.Column("imported_at", sa.Text),
        sa.Column("signature", sa.Text, nullable=False),
    )
    op.create_index("ix_runs_name", "runs", ["name"])
    _create_measurements()
    _create_spans_and_events()
    _create_steps()
    _create_evaluations()


def downgrade() -> None:
    for table in ("evaluations", "steps", "events", "spans", "measurements", "runs"):
        op.drop_table(table)


def _run_id() -> sa.Column[str]:
    return sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)


def _seq() -> sa.Column[int]:
    return sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False)


def _create_measurements() -> None:
    op.create_table(
        "measurements",
        _run_id(),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("n", sa.BigInteger),
        sa.Column("ci_low", sa.Float),
        sa.Column("ci_high", sa.Float),
        sa.Column("ci_method", sa.Text),
        sa.Column("reason", sa.Text),
    )
    op.create_index("ix_measurements_name", "measurements", ["name", "run_id", "value"])


def _create_spans_and_events() -> None:
    op.create_table(
        "spans",
        _run_id(),
        _seq(),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "events",
        _run_id(),
        _seq(),
        sa.Column("at_s", sa.Float),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
    )


def _create_steps() -> None:
    seconds_and_figures = ("start_s", "step_s", "data_wait_s", "communication_s", "loss", "grad_norm", "lr")
    tokens = ("useful_tokens", "supervised_tokens", "processed_tokens")
    counts = (*tokens, "head_rows", "attention_sum_sq", "micro_batches")
    op.create_table(
        "steps",
        _run_id(),
        _seq(),
        sa.Column("step", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Float) for name in seconds_and_figures),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in counts),
        sa.Column("shape", sa.JSON, nullable=False),
        sa.Column("skipped", sa.Boolean, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
    )


def _create_evaluations() -> None:
    op.create_table(
        "evaluations",
        _run_id(),
        _seq(),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("at_s", sa.Float),
        sa.Column("split", sa.Text, nullable=False),
        sa.Column("loss", sa.Float),
        sa.Column("perplexity", sa.Float),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Float),
        sa.Column("best", sa.Boolean, nullable=False),
    )
