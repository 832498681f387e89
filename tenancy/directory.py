"""Tenancy on a database: look-ups for every request, and an administration for every actor.

Owns the composition; composition roots call `open_tenancy` on a database that
`migrations.upgrade` has brought up to date. Read next: `tenancy.sql_administration`.
"""

import asyncio
from pathlib import Path
from typing import Final

import structlog

from contracts.errors import ServiceError
from tenancy.actors import Actor, ActorKind
from tenancy.audit.heads import HeadFile, HeadLog, NoHeadLog
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.encryption.key_ring import Keys
from tenancy.encryption.key_ring_file import FollowedKeyRing
from tenancy.gateway_store import GatewayStore
from tenancy.operators.store import OperatorLookup
from tenancy.sources import Clock, Randomness
from tenancy.sql_administration import SqlAdministration
from tenancy.store import StoreParts
from tenancy.tokens.lookup import PrincipalLookup

log = structlog.get_logger(__name__)
KEY_POLL_S: Final = 1.0
_KEEPER: Final = Actor(ActorKind.SYSTEM, "gateway")


class SqlTenancy(PrincipalLookup, OperatorLookup, GatewayStore):
    """`TenancyDirectory` on SQLite or PostgreSQL; owns the database that all stores share."""

    def act_as(self, actor: Actor) -> SqlAdministration:
        """What `actor` may read and change; costs nothing and holds nothing open."""
        return SqlAdministration(self._parts, actor)

    async def follow_keys(self) -> None:
        """Looks for a new key ring for ever, and brings data keys under its current version."""
        is_behind = True  # whoever rotated last may not have come to the end
        while True:
            is_behind = self._keys.refresh() or is_behind
            if is_behind:
                try:
                    is_behind = await self.act_as(_KEEPER).rewrap_data_keys() > 0
                except ServiceError as error:
                    log.warning("data_keys_not_rewrapped", error=type(error).__name__)
            await asyncio.sleep(KEY_POLL_S)

    async def close(self) -> None:
        """Releases connections; nothing may follow."""
        await self._database.close()


def create_tenancy(
    database_url: str,
    keys: Keys,
    clock: Clock,
    randomness: Randomness,
    heads: HeadLog | None = None,
) -> SqlTenancy:
    """Tenancy on the database at `database_url`, connected at first use.

    `clock` gives seconds since 1970, `randomness` that many unpredictable bytes; signed heads of
    the audit log go to `heads`. Raises: `SettingsError` for a URL of another kind.
    """
    database = Database(create_engine(parse_database_url(database_url)))
    return SqlTenancy(StoreParts(database, keys, clock, randomness, heads or NoHeadLog()))


def open_tenancy(
    database_url: str, key_ring: Path, audit_heads: Path, clock: Clock, randomness: Randomness
) -> SqlTenancy:
    """The same with the key ring of one file and signed heads in another.

    Raises: `SettingsError` for a key ring that is missing, malformed or readable by others.
    """
    keys = FollowedKeyRing(key_ring)
    return create_tenancy(database_url, keys, clock, randomness, HeadFile(audit_heads))
