"""Payload logs in the database, as gateways write them: `PayloadKeeper` on SQLAlchemy.

Nothing is kept that the account does not want at the moment of writing, whatever a gateway believed
when the request came. Read next: `tenancy.payloads.administration`.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.grant import RetentionClass
from contracts.ids import AccountId
from contracts.payloads import NewPayload
from tenancy.encryption.data_keys import create_data_key, find_data_key
from tenancy.payloads.rows import to_row
from tenancy.sources import read_unix_us
from tenancy.store import Store
from tenancy.tables import accounts, payload_logs

_DROPPED_AT_ONCE: Final = 1000


class PayloadKeeper(Store):
    """Keeps payloads and forgets them in time."""

    async def keep_payloads(self, payloads: Sequence[NewPayload]) -> int:
        """How many of `payloads` are kept now: those whose accounts want it at this moment.

        A payload that is there already is left as it is.
        """
        async with self._database.write() as connection:
            days = await _find_days(connection, {one.account_id for one in payloads})
            known = await _find_known(connection, payloads)
            kept = [
                one for one in payloads if one.account_id in days and one.request_id not in known
            ]
            keys = {
                account_id: await self._take_key(connection, account_id)
                for account_id in {one.account_id for one in kept}
            }
            rows = [
                to_row(one, days[one.account_id], keys[one.account_id], self._randomness)
                for one in kept
            ]
            if rows:
                await connection.execute(insert(payload_logs), rows)
        return len(rows)

    async def drop_payloads(self, max_bytes: int) -> int:
        """How many were deleted: those whose time is over, and the oldest of each account that
        has more than `max_bytes`; a number of them at a time.
        """
        now_ms = read_unix_us(self._clock) // 1000
        async with self._database.write() as connection:
            is_over = payload_logs.c.expires_unix_ms <= now_ms
            query = select(payload_logs.c.request_id).where(is_over).limit(_DROPPED_AT_ONCE)
            doomed = list((await connection.execute(query)).scalars())
            total = func.sum(payload_logs.c.num_bytes)
            query = (
                select(payload_logs.c.account_id, total.label("num_bytes"))
                .group_by(payload_logs.c.account_id)
                .having(total > max_bytes)
            )
            for row in (await connection.execute(query)).all():
                excess = row.num_bytes - max_bytes
                most = _DROPPED_AT_ONCE - len(doomed)  # of all: a statement has so many parameters
                if most <= 0:
                    break
                doomed += await _find_oldest(connection, AccountId(row.account_id), excess, most)
            statement = delete(payload_logs).where(payload_logs.c.request_id.in_(doomed))
            return (await connection.execute(statement)).rowcount if doomed else 0

    async def _take_key(self, connection: AsyncConnection, account_id: AccountId) -> bytes:
        """The account's data key, made now for an account of a version that made none."""
        key = await find_data_key(connection, account_id, self._keys)
        if key is not None:
            return key
        return await create_data_key(connection, account_id, self._keys, self._randomness)


async def _find_days(
    connection: AsyncConnection, account_ids: set[AccountId]
) -> dict[AccountId, int]:
    """For how many days each of these accounts wants payloads kept; others are left out.

    On PostgreSQL the rows stay locked, so that an account that opts out waits for what is written
    and deletes it with the rest.
    """
    query = (
        select(accounts.c.account_id, accounts.c.payload_days)
        .where(
            accounts.c.account_id.in_(account_ids),
            accounts.c.payload_days.is_not(None),
            accounts.c.retention != RetentionClass.NONE,
            accounts.c.purged_unix_us.is_(None),
        )
        .with_for_update(read=True)
    )
    rows = (await connection.execute(query)).all()
    return {AccountId(row.account_id): row.payload_days for row in rows}


async def _find_known(connection: AsyncConnection, payloads: Sequence[NewPayload]) -> set[str]:
    """The requests among these that are kept already, by a write whose end was not heard of."""
    query = select(payload_logs.c.request_id).where(
        payload_logs.c.request_id.in_([one.request_id for one in payloads])
    )
    return set((await connection.execute(query)).scalars())


async def _find_oldest(
    connection: AsyncConnection, account_id: AccountId, num_bytes: int, most: int
) -> list[str]:
    """The account's oldest payloads that come to `num_bytes` or a little more; at most `most`."""
    query = (
        select(payload_logs.c.request_id, payload_logs.c.num_bytes)
        .where(payload_logs.c.account_id == account_id)
        .order_by(payload_logs.c.request_id)
        .limit(most)
    )
    found: list[str] = []
    for row in (await connection.execute(query)).all():
        if num_bytes <= 0:
            break
        found.append(row.request_id)
        num_bytes -= row.num_bytes
    return found
