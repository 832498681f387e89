"""The database: SQLite or PostgreSQL behind one small interface that speaks our own errors.

Owns engines, transactions and the translation of driver errors; must not know any table.
Read next: `tenancy.tables`, `tenancy.directory`.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from contracts.errors import InvariantBroken, StoreUnavailable
from contracts.settings import SettingsError

CONNECT_TIMEOUT_S: Final = 5.0
STATEMENT_TIMEOUT_S: Final = 5.0
"""How long a statement may take; in SQLite, how long it waits for another writer."""
POOL_SIZE: Final = 5
POOL_RECYCLE_S: Final = 1800

_DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_IS_WRITE: Final = "hearth_is_write"
_WAIT_S: Final = "hearth_wait_s"
"""How long a writer waits for its turn, an option of SQLite's engines."""


def parse_database_url(text: str) -> URL:
    """The URL with our drivers named: `sqlite:///file` and `postgresql://…?sslmode=…` work too.

    Raises: `SettingsError` for other databases and for SQLite without a file.
    """
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise SettingsError("The database URL cannot be parsed.") from error
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise SettingsError(
            f"The database URL starts with `{url.drivername}`; "
            "Hearth works on `sqlite+aiosqlite` and `postgresql+asyncpg`."
        )
    url = url.set(drivername=driver)
    if is_sqlite(url) and url.database in (None, "", ":memory:"):
        raise SettingsError("The database URL names no file, such as `sqlite+aiosqlite:///path`.")
    if "sslmode" in url.query:  # libpq's name for what asyncpg calls ssl
        mode = url.query["sslmode"]
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url


def is_sqlite(url: URL) -> bool:
    """True for a file on this machine, false for PostgreSQL."""
    return url.drivername.startswith("sqlite")


def create_engine(
    url: URL, *, statement_timeout_s: float | None = STATEMENT_TIMEOUT_S
) -> AsyncEngine:
    """An engine that connects at first use; `statement_timeout_s` None waits without end."""
    if is_sqlite(url):
        wait_s = 3600.0 if statement_timeout_s is None else statement_timeout_s
        engine = create_async_engine(
            url, connect_args={"timeout": wait_s}, execution_options={_WAIT_S: wait_s}
        )
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    return create_async_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_recycle=POOL_RECYCLE_S,
        pool_pre_ping=True,  # one round trip more, and a restarted server costs no request
        connect_args={"timeout": CONNECT_TIMEOUT_S, "command_timeout": statement_timeout_s},
    )


class Database:
    """Transactions over an engine, in one event loop. What the driver raises leaves as one of our
    errors.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        """Takes over `engine`, which `close` disposes of."""
        self._engine = engine
        self._write_engine = engine.execution_options(**{_IS_WRITE: True})
        self._turn = asyncio.Lock()

    @property
    def is_postgresql(self) -> bool:
        """False for SQLite, where one transaction writes at a time."""
        return self._engine.dialect.name == "postgresql"

    @property
    def file(self) -> Path:
        """Where SQLite keeps the database."""
        return Path(str(self._engine.url.database))

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for queries. Raises: `StoreUnavailable`."""
        with translate_driver_errors():
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction, rolled back when the body raises. Raises: `StoreUnavailable`."""
        with translate_driver_errors():
            async with AsyncExitStack() as connections, self._wait_for_turn():
                entered = self._write_engine.connect()
                connection = await connections.enter_async_context(entered)
                async with connection.begin():
                    yield connection

    @asynccontextmanager
    async def _wait_for_turn(self) -> AsyncGenerator[None]:
        """Lets writers of this process write one after the other, as they came, where the database
        does so in any order: SQLite has who waits ask again after ever longer pauses, so that
        whoever comes last is first. Raises: `TimeoutError`.
        """
        if self.is_postgresql:
            yield
            return
        async with asyncio.timeout(self._engine.sync_engine.get_execution_options()[_WAIT_S]):
            await self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    async def connect(self) -> AsyncConnection:
        """A connection without transactions; the caller closes it. Raises: `StoreUnavailable`."""
        with translate_driver_errors():
            connection = await self._engine.connect()
            return await connection.execution_options(isolation_level="AUTOCOMMIT")

    async def close(self) -> None:
        """Closes all connections."""
        await self._engine.dispose()


@contextmanager
def translate_driver_errors() -> Generator[None]:
    """Turns what SQLAlchemy, the drivers and the network raise into our errors.

    Raises: `StoreUnavailable`; `InvariantBroken` when a constraint refuses what we checked.
    """
    try:
        yield
    except IntegrityError as error:
        raise InvariantBroken("The database refused a change that it should accept.") from error
    except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        # The driver's text can hold host names and statements: it stays in the cause, for logs.
        message = "The database cannot be reached at the moment."
        raise StoreUnavailable(message, retry_after_s=1) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Sets what SQLite keeps per connection.

    `synchronous=FULL`: with WAL, NORMAL can lose the last commits at a power cut, and a lost
    revocation would let a token back in. Changes are rare, so the fsync costs nothing that counts.
    """
    connection.isolation_level = None  # the driver opens no transactions; `_begin_sqlite` does
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Opens a transaction; one that will write takes the lock at once.

    A reader that upgrades later would fail with SQLITE_BUSY instead of waiting for its turn.
    """
    is_write = connection.get_execution_options().get(_IS_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")
