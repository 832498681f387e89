"""The right to be the only gateway process on a database, for limits that live in one process.

On SQLite a lock on a file beside the database, on PostgreSQL an advisory lock of a connection that
stays open: both end with the process, whatever happens to it. Must not know what is claimed for.
"""

import asyncio
import fcntl
from typing import IO, Final

import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import Conflict, ServiceError, StoreUnavailable
from tenancy.db import Database, translate_driver_errors
from tenancy.interfaces import ProcessClaim

log = structlog.get_logger(__name__)
_LOCK_KEY: Final = 0x4845_4152_5448 + 3
WATCH_S: Final = 2.0
_REFUSAL: Final = (
    "Another gateway process works on this database, and limits are counted in one process. "
    "Stop it, or let both count in Valkey or Redis (`shared_limits.url`)."
)


class FileClaim:
    """A lock on `<database>.gateway-lock`."""

    def __init__(self, database: Database) -> None:
        """Nothing is locked yet."""
        self._path = database.file.with_name(f"{database.file.name}.gateway-lock")
        self._lock: IO[str] | None = None

    @property
    def is_lost(self) -> bool:
        """Never: the lock lasts as long as the process."""
        return False

    async def acquire(self) -> None:
        """Raises: `Conflict` when another process has it, `StoreUnavailable`."""
        try:
            lock = self._path.open("w")
        except OSError as error:
            raise StoreUnavailable("The database's folder cannot be written.") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise Conflict(_REFUSAL) from error
        self._lock = lock

    async def watch(self) -> None:
        """Waits for ever."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Gives it to whoever comes next."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class ConnectionClaim:
    """An advisory lock of a connection of its own."""

    def __init__(self, database: Database) -> None:
        """Nothing is locked yet."""
        self._database = database
        self._connection: AsyncConnection | None = None
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """True once another process has taken it."""
        return self._is_lost

    async def acquire(self) -> None:
        """Raises: `Conflict` when another process has it, `StoreUnavailable`."""
        connection = await self._database.connect()
        with translate_driver_errors():
            query = select(func.pg_try_advisory_lock(_LOCK_KEY))
            is_ours = (await connection.execute(query)).scalar_one()
        if not is_ours:
            await connection.close()
            raise Conflict(_REFUSAL)
        self._connection = connection

    async def watch(self) -> None:
        """Keeps it for ever; takes it again when the database has let go, or notes the loss."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self._check()
            except Conflict:
                if not self._is_lost:
                    log.error("gateway_claim_lost")
                self._is_lost = True
            except ServiceError as error:
                log.warning("gateway_claim_unchecked", error=type(error).__name__)

    async def release(self) -> None:
        """Gives it to whoever comes next."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.invalidate()  # a pooled connection would keep the lock
            await connection.close()

    async def _check(self) -> None:
        """Returns while it is ours. Raises: `Conflict`, `StoreUnavailable`."""
        if self._connection is not None:
            try:
                with translate_driver_errors():
                    await self._connection.execute(select(1))
                return
            except StoreUnavailable:
                connection, self._connection = self._connection, None
                await connection.invalidate()
                await connection.close()
        await self.acquire()
        self._is_lost = False


def create_process_claim(database: Database) -> ProcessClaim:
    """The claim that fits the kind of database."""
    return ConnectionClaim(database) if database.is_postgresql else FileClaim(database)
