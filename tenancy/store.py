"""What every store on the database is built from.

Owns the four parts and the transaction that ends in a new epoch.
Read next: `tenancy.accounts.store`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection

from tenancy.db import Database
from tenancy.encryption.key_ring import KeyRing
from tenancy.epoch import bump_epoch, read_epoch
from tenancy.sources import Clock, Randomness


class Store:
    """Base of the stores that share one database."""

    def __init__(
        self, database: Database, key_ring: KeyRing, clock: Clock, randomness: Randomness
    ) -> None:
        """Keeps the parts; whoever composes the stores closes `database`."""
        self._database = database
        self._key_ring = key_ring
        self._clock = clock
        self._randomness = randomness

    async def read_epoch(self) -> int:
        """Grows with every change that could make a cached principal wrong."""
        async with self._database.read() as connection:
            return await read_epoch(connection)

    @asynccontextmanager
    async def _write_and_bump(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction for a change that cached principals depend on: it bumps the epoch."""
        async with self._database.write() as connection:
            yield connection
            await bump_epoch(connection)
