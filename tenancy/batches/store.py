"""Batches in the database: `BatchStore` on SQLAlchemy.

Owns the statements on `batches` and `batch_items`. An item belongs to nobody, or until a moment to
one life of a gateway; only that one can finish it, so that each item is answered once. What is
asked and answered is kept under the account's data key only and goes with it. Read next:
`tenancy.batches.claims`, `tenancy.encryption.envelope`.
"""

from typing import Any, Final

from sqlalchemy import RowMapping, delete, exists, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.batches import BatchBounds, BatchProgress, BatchState, NewBatch
from contracts.errors import InvariantBroken, NotFound, RateLimited
from contracts.ids import AccountId, ModelName, RequestId
from tenancy.batches.cells import to_input_cell, to_output_cell
from tenancy.batches.claims import BatchClaimStore
from tenancy.encryption.data_keys import create_data_key, find_data_key
from tenancy.encryption.envelope import seal, unseal
from tenancy.ownership import create_account_not_found, is_living_account
from tenancy.sources import read_unix_us
from tenancy.tables import accounts, batch_items, batches

STEP_US: Final = 100_000
"""How far an item stands behind the one before it of the same account."""
_DROPPED_AT_ONCE: Final = 100


class BatchStore(BatchClaimStore):
    """Keeps batches and tells how they stand."""

    async def create_batch(self, batch: NewBatch, bounds: BatchBounds) -> None:
        """Keeps a batch, whose items wait from now on.

        Raises: `NotFound` (account), `RateLimited` when the account has too much in store.
        """
        num_bytes = sum(map(len, batch.items))
        async with self._database.write() as connection:
            await _require_room(connection, batch.account_id, num_bytes, bounds)
            key = await find_data_key(connection, batch.account_id, self._keys)
            if key is None:  # an account of a version that made none
                key = await create_data_key(
                    connection, batch.account_id, self._keys, self._randomness
                )
            row = {
                "batch_id": batch.batch_id,
                "account_id": batch.account_id,
                "api_token_id": batch.api_token_id,
                "model": batch.model,
                "num_bytes": num_bytes,
                "due_unix_ms": batch.due_unix_ms,
                "expires_unix_ms": batch.expires_unix_ms,
            }
            await connection.execute(insert(batches).values(row))
            turn_us = await self._find_turn(connection, batch.account_id)
            await connection.execute(insert(batch_items), self._to_rows(batch, key, turn_us))

    async def read_batch(self, account_id: AccountId, batch_id: RequestId) -> BatchProgress:
        """How the batch stands. Raises: `NotFound`, also for another account's."""
        is_it = (batches.c.batch_id == batch_id) & (batches.c.account_id == account_id)
        of_it = batch_items.c.batch_id == batch_id
        is_begun = batch_items.c.is_done | batch_items.c.owner.is_not(None)
        query = select(
            batches.c.model,
            exists().where(of_it, batch_items.c.is_done.is_(False)).label("is_open"),
            exists().where(of_it, is_begun).label("is_begun"),
        ).where(is_it)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None:
                raise NotFound("There is no batch with this id.", param="request_id")
            model = ModelName(row.model)
            if row.is_open:
                state = BatchState.RUNNING if row.is_begun else BatchState.QUEUED
                return BatchProgress(model=model, state=state)
            outputs = (
                select(batch_items.c.item_index, batch_items.c.sealed_output)
                .where(of_it)
                .order_by(batch_items.c.item_index)
            )
            rows = (await connection.execute(outputs)).all()
            key = await find_data_key(connection, account_id, self._keys)
        if key is None:
            raise InvariantBroken("An account with batches has lost its key.")
        return BatchProgress(
            model=model,
            state=BatchState.DONE,
            outputs=tuple(
                unseal(key, one.sealed_output, to_output_cell(account_id, batch_id, one.item_index))
                for one in rows
            ),
        )

    async def count_waiting_batch_items(self) -> int:
        """Items of all accounts that are not answered yet."""
        query = select(func.count()).where(batch_items.c.is_done.is_(False))
        async with self._database.read() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def drop_expired_batches(self) -> int:
        """How many batches were deleted because their time is over; a number of them at a time."""
        over = batches.c.expires_unix_ms <= self._read_unix_ms()
        query = select(batches.c.batch_id).where(over).limit(_DROPPED_AT_ONCE)
        async with self._database.write() as connection:
            found = [row.batch_id for row in await connection.execute(query)]
            for table in (batch_items, batches):
                await connection.execute(delete(table).where(table.c.batch_id.in_(found)))
        return len(found)

    async def _find_turn(self, connection: AsyncConnection, account_id: AccountId) -> int:
        """When the account's next item is due: now, or behind the last one that still waits."""
        waits = (batch_items.c.account_id == account_id) & batch_items.c.is_done.is_(False)
        query = select(func.max(batch_items.c.turn_unix_us)).where(waits)
        last_us = (await connection.execute(query)).scalar_one()
        now_us = read_unix_us(self._clock)
        return now_us if last_us is None else max(now_us, last_us + STEP_US)

    def _to_rows(self, batch: NewBatch, key: bytes, turn_us: int) -> list[dict[str, Any]]:
        """The rows of a new batch's items."""
        return [
            {
                "batch_id": batch.batch_id,
                "item_index": index,
                "account_id": batch.account_id,
                "is_done": False,
                "turn_unix_us": turn_us + index * STEP_US,
                "held_until_unix_ms": 0,
                "num_lost": 0,
                "sealed_input": seal(
                    key,
                    item,
                    to_input_cell(batch.account_id, batch.batch_id, index),
                    self._randomness,
                ),
            }
            for index, item in enumerate(batch.items)
        ]


async def _require_room(
    connection: AsyncConnection, account_id: AccountId, num_bytes: int, bounds: BatchBounds
) -> None:
    """Raises unless the account exists and has room; it stays unchanged until the transaction ends.

    Raises: `NotFound`, `RateLimited`.
    """
    held = select(accounts.c.account_id).where(is_living_account(account_id)).with_for_update()
    if (await connection.execute(held)).one_or_none() is None:
        raise create_account_not_found()
    query = select(
        func.count().label("num_batches"),
        func.coalesce(func.sum(batches.c.num_bytes), 0).label("num_bytes"),
    ).where(batches.c.account_id == account_id)
    row: RowMapping = (await connection.execute(query)).mappings().one()
    if row["num_batches"] >= bounds.max_batches:
        raise RateLimited(
            f"An account has at most {bounds.max_batches} batches in store; old ones are deleted.",
            retry_after_s=60,
        )
    if row["num_bytes"] + num_bytes > bounds.max_bytes:
        raise RateLimited(
            f"An account has batches of at most {bounds.max_bytes} bytes in store; old ones are "
            "deleted.",
            retry_after_s=60,
        )
