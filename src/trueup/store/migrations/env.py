"""What Alembic runs for every command. The connection, with its transaction, comes from `store.migrate`."""

from __future__ import annotations

from alembic import context

from trueup.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
