"""Alembic's entry: runs revisions on the connection it is given, or on one of its own.

`migrations.upgrade` passes a connection. The `alembic` command opens the database that
`-x url=…` names, else that of `alembic.ini`.
"""

import asyncio

from alembic import context
from sqlalchemy import Connection

from migrations.upgrade import run_locked
from tenancy.tables import metadata


def run_migrations(connection: Connection) -> None:
    """Runs what the command asked for."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,  # SQLite cannot alter tables; Alembic copies them
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run_migrations(given)
elif context.is_offline_mode():
    context.configure(dialect_name="postgresql", target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    named = context.get_x_argument(as_dictionary=True).get("url")
    url = named or context.config.get_main_option("sqlalchemy.url") or ""
    asyncio.run(run_locked(url, run_migrations))
