"""Tenancy on a database: the three stores as one `Tenancy`.

Owns the composition; composition roots call `create_tenancy` on a database that
`migrations.upgrade` has brought up to date. Read next: the stores.
"""

from tenancy.accounts.store import AccountStore
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.encryption.key_ring import KeyRing
from tenancy.operators.store import OperatorStore
from tenancy.sources import Clock, Randomness
from tenancy.tokens.store import ApiTokenStore


class SqlTenancy(AccountStore, ApiTokenStore, OperatorStore):
    """`Tenancy` on SQLite or PostgreSQL; owns the database that its stores share."""

    async def close(self) -> None:
        """Releases connections; nothing may follow."""
        await self._database.close()


def create_tenancy(
    database_url: str, key_ring: KeyRing, clock: Clock, randomness: Randomness
) -> SqlTenancy:
    """Tenancy on the database at `database_url`, connected at first use.

    `clock` gives seconds since 1970, `randomness` that many unpredictable bytes.
    Raises: `SettingsError` for a URL of another kind.
    """
    engine = create_engine(parse_database_url(database_url))
    return SqlTenancy(Database(engine), key_ring, clock, randomness)
