"""The audit log's table: appending inside the change's own transaction, and reading.

Owns the statements on `audit_log` and `audit_chain`. The one row of `audit_chain` is locked by
whoever appends, until the commit: entries have one order, without gaps.
Read next: `tenancy.store`, which appends.
"""

from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import InvariantBroken
from contracts.ids import AccountId
from tenancy.actors import Actor, ActorKind
from tenancy.audit.chain import hash_entry
from tenancy.audit.conditions import list_conditions
from tenancy.audit.entries import AuditEntry, AuditFilter
from tenancy.tables import AUDIT_CHAIN_ID, audit_chain, audit_log

_IS_CHAIN = audit_chain.c.chain_id == AUDIT_CHAIN_ID


async def claim_place(connection: AsyncConnection) -> tuple[int, bytes]:
    """The next entry's sequence and the hash before it; others wait for this transaction."""
    claim = (
        update(audit_chain)
        .where(_IS_CHAIN)
        .values(sequence=audit_chain.c.sequence + 1)
        .returning(audit_chain.c.sequence, audit_chain.c.hash)
    )
    row = (await connection.execute(claim)).one_or_none()
    if row is None:
        raise InvariantBroken("The audit log has lost its chain.")
    return row.sequence, row.hash


async def append_entry(connection: AsyncConnection, previous: bytes, entry: AuditEntry) -> bytes:
    """The hash of `entry`, written to the place that `claim_place` gave it."""
    digest = hash_entry(previous, entry)
    actor = entry.actor
    row = {
        "sequence": entry.sequence,
        "occurred_unix_us": entry.occurred_unix_us,
        "account_id": entry.account_id,
        "actor_kind": actor.kind,
        "actor_id": actor.actor_id,
        "actor_account_id": actor.account_id,
        "actor_address": actor.address,
        "request_id": actor.request_id,
        "action": entry.action,
        "resource_id": entry.resource_id,
        "details": entry.details,
        "hash": digest,
    }
    await connection.execute(insert(audit_log).values(row))
    await connection.execute(update(audit_chain).where(_IS_CHAIN).values(hash=digest))
    return digest


async def read_chain_end(connection: AsyncConnection) -> tuple[int, bytes]:
    """The sequence and hash that the chain's own row remembers."""
    query = select(audit_chain.c.sequence, audit_chain.c.hash).where(_IS_CHAIN)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise InvariantBroken("The audit log has lost its chain.")
    return row.sequence, row.hash


async def list_entries(
    connection: AsyncConnection,
    wanted: AuditFilter,
    *,
    limit: int,
    after: int | None,
    skip: int,
    oldest_first: bool,
) -> list[AuditEntry]:
    """At most `limit` entries that fit `wanted`, those beyond `after` in the order asked for,
    without the first `skip` of them.
    """
    columns = audit_log.c
    order = columns.sequence.asc() if oldest_first else columns.sequence.desc()
    query = select(audit_log).order_by(order).limit(limit).offset(skip)
    if after is not None:
        query = query.where(columns.sequence > after if oldest_first else columns.sequence < after)
    query = query.where(*list_conditions(wanted))
    return [to_entry(row) for row in await connection.execute(query)]


async def read_links(
    connection: AsyncConnection, after: int, limit: int
) -> list[tuple[AuditEntry, bytes]]:
    """At most `limit` entries after sequence `after` in order, each with its stored hash."""
    query = (
        select(audit_log)
        .where(audit_log.c.sequence > after)
        .order_by(audit_log.c.sequence)
        .limit(limit)
    )
    return [(to_entry(row), row.hash) for row in await connection.execute(query)]


def to_entry(row: Row[Any]) -> AuditEntry:
    """The entry that a row describes, whatever somebody may have made of it."""
    return AuditEntry(
        sequence=row.sequence,
        occurred_unix_us=row.occurred_unix_us,
        account_id=None if row.account_id is None else AccountId(row.account_id),
        actor=Actor(
            kind=ActorKind(row.actor_kind),
            actor_id=row.actor_id,
            account_id=None if row.actor_account_id is None else AccountId(row.actor_account_id),
            address=row.actor_address,
            request_id=row.request_id,
        ),
        action=row.action,
        resource_id=row.resource_id,
        details=row.details,
    )
