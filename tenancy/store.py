"""What every store on the database is built from, and the one way to change something.

Owns the transaction of a change: what was changed, its audit entry and the epoch are committed
together or not at all, then the log's new head is signed. Read next: `tenancy.accounts.store`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import Forbidden, InvariantBroken
from contracts.ids import AccountId
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditEntry
from tenancy.audit.heads import HeadLog, sign_head
from tenancy.audit.log import append_entry, claim_place
from tenancy.changes import Action
from tenancy.db import Database
from tenancy.encryption.key_ring import Keys
from tenancy.epoch import bump_epoch, read_epoch
from tenancy.ownership import create_account_not_found
from tenancy.sources import Clock, Randomness, read_unix_us

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What all stores of one tenancy share."""

    database: Database
    keys: Keys
    clock: Clock
    randomness: Randomness
    heads: HeadLog
    checking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the audit log is checked, which reads all of it."""


class Store:
    """Base of the stores that share one database."""

    def __init__(self, parts: StoreParts) -> None:
        """Keeps the parts; whoever composes the stores closes the database."""
        self._parts = parts
        self._database = parts.database
        self._keys = parts.keys
        self._clock = parts.clock
        self._randomness = parts.randomness

    async def read_epoch(self) -> int:
        """Grows with every change that could make a cached principal wrong."""
        async with self._database.read() as connection:
            return await read_epoch(connection)


class Change:
    """A change under way, and what the audit log will say of it."""

    def __init__(self, connection: AsyncConnection) -> None:
        """`connection` is inside the change's transaction."""
        self.connection = connection
        self.account_id: AccountId | None = None
        self.resource_id: str | None = None
        self.details = b"{}"

    def note(self, resource_id: str, account_id: AccountId | None = None, **details: Any) -> None:
        """Says what is changed, once per change. `details` become JSON: never pass a secret."""
        self.resource_id = resource_id
        self.account_id = account_id
        self.details = msgspec.json.encode(details, order="sorted")


class ActingStore(Store):
    """Base of the stores that change something on an actor's behalf."""

    def __init__(self, parts: StoreParts, actor: Actor) -> None:
        """`actor` is named in the audit entry of every change."""
        super().__init__(parts)
        self._actor = actor

    @asynccontextmanager
    async def _change(self, action: Action, *, moves_epoch: bool = True) -> AsyncGenerator[Change]:
        """A transaction for one change, which must be noted before the block ends.

        `moves_epoch` is False for what no cached principal can depend on.
        """
        async with self._database.write() as connection:
            change = Change(connection)
            yield change
            if moves_epoch:
                await bump_epoch(connection)
            sequence, digest = await self._record(action, change)
        await self._keep_head(sequence, digest)

    def _require_platform(self) -> None:
        """Raises `Forbidden` for an API token: the platform's objects are not a tenant's."""
        if self._actor.kind is ActorKind.API_TOKEN:
            raise Forbidden("Only operators may do this.")

    def _require_own(self, account_id: AccountId) -> None:
        """Raises `NotFound` for an API token of another account, which is not to learn of it."""
        if self._actor.kind is ActorKind.API_TOKEN and self._actor.account_id != account_id:
            raise create_account_not_found()

    async def _record(self, action: Action, change: Change) -> tuple[int, bytes]:
        """Appends the change's entry; its sequence and hash."""
        if change.resource_id is None:
            raise InvariantBroken("A change was not noted for the audit log.")
        sequence, previous = await claim_place(change.connection)
        entry = AuditEntry(
            sequence=sequence,
            occurred_unix_us=read_unix_us(self._clock),
            account_id=change.account_id,
            actor=self._actor,
            action=action,
            resource_id=change.resource_id,
            details=change.details.decode(),
        )
        return sequence, await append_entry(change.connection, previous, entry)

    async def _keep_head(self, sequence: int, digest: bytes) -> None:
        """Signs the log's new end. The change stands even if the head cannot be written."""
        head = sign_head(sequence, digest, int(self._clock()), self._keys)
        try:
            await asyncio.to_thread(self._parts.heads.append, head)
        except OSError as error:
            log.error("audit_head_not_written", sequence=sequence, error=error.strerror)
