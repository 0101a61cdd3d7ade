"""Alembic's entry: runs on the connection that `orbit.server.migrate` opened and locked."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # One transaction round each revision would promise what MySQL's DDL cannot keep.
    transactional_ddl=False,
)
context.run_migrations()
