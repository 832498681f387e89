"""Brings a database to the schema of this version, safely from several processes at once.

Owns the lock and the run; the steps are in `versions/`. Needs no `alembic.ini`.
"""

import asyncio
import fcntl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, func, select

from contracts.errors import StoreUnavailable
from contracts.settings import SettingsError
from tenancy.db import Database, create_engine, is_sqlite, parse_database_url

_LOCK_KEY: Final = 0x4845_4152_5448  # "HEARTH", shared by all that upgrade one PostgreSQL database


class SchemaState(StrEnum):
    """How a database's tables relate to this version's."""

    EMPTY = "empty"
    BEHIND = "behind"
    CURRENT = "current"
    UNKNOWN = "unknown"
    """Written by a version of Hearth that this one does not know."""


def upgrade_database(database_url: str) -> None:
    """Returns once the schema is current. For programs without a running event loop.

    Raises: `SettingsError` (URL), `StoreUnavailable`.
    """
    asyncio.run(upgrade_database_async(database_url))


async def upgrade_database_async(database_url: str) -> None:
    """`upgrade_database` for callers inside an event loop."""
    await run_locked(database_url, _run_missing_steps)


async def run_locked(database_url: str, steps: Callable[[Connection], None]) -> None:
    """Runs `steps` in one transaction while no other process changes this database's schema.

    Raises: `SettingsError` (URL), `StoreUnavailable`.
    """
    url = parse_database_url(database_url)
    async with _lock_sqlite_file(url) if is_sqlite(url) else nullcontext():
        database = Database(create_engine(url, statement_timeout_s=None))
        try:
            async with database.write() as connection:
                if not is_sqlite(url):
                    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK_KEY)))
                await connection.run_sync(steps)
        finally:
            await database.close()


async def read_schema_state(database_url: str) -> SchemaState:
    """The state of the database's schema; creates nothing. Raises: `StoreUnavailable`."""
    url = parse_database_url(database_url)
    if is_sqlite(url) and not _has_file(url):
        return SchemaState.EMPTY
    database = Database(create_engine(url))
    try:
        async with database.read() as connection:
            revision = await connection.run_sync(_read_revision)
    finally:
        await database.close()
    return _classify(revision)


def create_alembic_config() -> Config:
    """Alembic's configuration for the scripts of the installed package."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def _run_missing_steps(connection: Connection) -> None:
    """Brings `connection`'s database up to date; another process may have done it meanwhile."""
    state = _classify(_read_revision(connection))
    if state is SchemaState.UNKNOWN:
        raise StoreUnavailable(
            "The database was written by a newer version of Hearth; use that version or a copy."
        )
    if state is not SchemaState.CURRENT:
        config = create_alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _has_file(url: URL) -> bool:
    """True when the SQLite database exists; connecting to it would create it."""
    return Path(str(url.database)).exists()


def _read_revision(connection: Connection) -> str | None:
    """The revision stamped into the database, None when there is none."""
    return MigrationContext.configure(connection).get_current_revision()


def _classify(revision: str | None) -> SchemaState:
    """What `revision` means to this version."""
    if revision is None:
        return SchemaState.EMPTY
    scripts = ScriptDirectory.from_config(create_alembic_config())
    if revision == scripts.get_current_head():
        return SchemaState.CURRENT
    known = {script.revision for script in scripts.walk_revisions()}
    return SchemaState.BEHIND if revision in known else SchemaState.UNKNOWN


@asynccontextmanager
async def _lock_sqlite_file(url: URL) -> AsyncGenerator[None]:
    """Holds a lock beside the database file, which may not exist yet.

    SQLite's own locks do not cover the switch to WAL, at which a second process would fail
    instead of waiting. The lock ends with the process, whatever happens to it.
    """
    path = Path(str(url.database))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_path = path.with_name(f"{path.name}.upgrade-lock")
        for file in (path, lock_path):  # SQLite gives its side files the same mode
            file.touch(mode=0o600)
        lock = lock_path.open("w")
    except OSError as error:
        raise SettingsError(f"The database {path} cannot be written: {error.strerror}.") from error
    with lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
