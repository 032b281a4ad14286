"""The database's tables, as they are at the newest migration.

The migrations lead here. Reading and writing rows needs none of this, and nothing of SQLAlchemy, whose import
alone takes a fifth of a second: `rows` knows from the records what a column holds. Samples are not here; they
stay in the run folder.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False, server_default="train"),  # or load
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("started_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("wall_s", Float),
    Column("recipe_digest", Text, nullable=False),
    Column("model", Text),
    Column("device", Text),
    Column("imported_at", Text),  # set when the run came from another machine
    Column("signature", Text, nullable=False),  # of the run folder's files when they were read
)
Index("ix_runs_name", runs.c.name)


def _run_id() -> Column[str]:
    return Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)


def _seq() -> Column[int]:
    return Column("seq", Integer, primary_key=True, autoincrement=False)


# Apart from `runs`: a header is a hundred times as long as what a list of runs reads. Its recipe is apart
# from the rest of it: what all runs are asked for is mostly a setting.
headers = Table("headers", metadata, _run_id(), Column("header", JSON, nullable=False))
recipes = Table("recipes", metadata, _run_id(), Column("recipe", JSON, nullable=False))

measurements = Table(
    "measurements",
    metadata,
    _run_id(),
    Column("name", Text, primary_key=True),
    Column("seq", Integer, nullable=False),
    Column("value", Float),
    Column("unit", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("n", BigInteger),
    Column("ci_low", Float),
    Column("ci_high", Float),
    Column("ci_method", Text),
    Column("reason", Text),
)
Index("ix_measurements_name", measurements.c.name, measurements.c.run_id, measurements.c.value)

spans = Table(
    "spans",
    metadata,
    _run_id(),
    _seq(),
    Column("name", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("count", BigInteger, nullable=False),
)

events = Table(
    "events",
    metadata,
    _run_id(),
    _seq(),
    Column("at_s", Float),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSON, nullable=False),
)

# A database has no NaN: NULL in a step's or evaluation's figure is the NaN of a run that diverged.
steps = Table(
    "steps",
    metadata,
    _run_id(),
    _seq(),
    Column("step", BigInteger, nullable=False),
    Column("start_s", Float),
    Column("step_s", Float),
    Column("data_wait_s", Float),
    Column("communication_s", Float),
    Column("loss", Float),
    Column("grad_norm", Float),
    Column("lr", Float),
    Column("useful_tokens", BigInteger, nullable=False),
    Column("supervised_tokens", BigInteger, nullable=False),
    Column("processed_tokens", BigInteger, nullable=False),
    Column("head_rows", BigInteger, nullable=False),
    Column("attention_sum_sq", BigInteger, nullable=False),
    Column("micro_batches", BigInteger, nullable=False),
    Column("shape", JSON, nullable=False),
    Column("loss_scale", Float),
    Column("skipped", Boolean, nullable=False),
    Column("labels", JSON, nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    _run_id(),
    _seq(),
    Column("step", BigInteger, nullable=False),
    Column("at_s", Float),
    Column("split", Text, nullable=False),
    Column("loss", Float),
    Column("perplexity", Float),
    Column("tokens", BigInteger, nullable=False),
    Column("seconds", Float),
    Column("best", Boolean, nullable=False),
)
