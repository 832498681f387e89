"""Finetunes in the database, as gateways look them up: `FinetuneDirectory` on SQLAlchemy.

Owns who may use whose finetune, reading of pieces, and the end of those that do not count. Read
next: `tenancy.finetunes.uploads`.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, or_, select

from contracts.finetunes import Finetune
from contracts.ids import AccountId, ModelName, is_finetune_id
from tenancy.encryption.data_keys import find_data_key
from tenancy.encryption.envelope import unseal
from tenancy.finetunes.interface import FinetuneOrder
from tenancy.finetunes.rows import is_meant, to_cell, to_finetune
from tenancy.interfaces import AccountStatus
from tenancy.sources import read_unix_us
from tenancy.store import Store
from tenancy.tables import accounts, finetune_pieces, finetune_uploads, finetunes
from tenancy.validation import check_page_size

_DROPPED_AT_ONCE: Final = 32
"""Megabytes, about."""
_COLUMNS: Final[dict[FinetuneOrder, Any]] = {
    FinetuneOrder.CREATED: finetunes.c.created_unix_us,
    FinetuneOrder.MODIFIED: finetunes.c.modified_unix_us,
    FinetuneOrder.NAME: finetunes.c.name,
    FinetuneOrder.MODEL: finetunes.c.model,
    FinetuneOrder.ID: finetunes.c.finetune_id,
}
_WITH_OWNERS: Final = finetunes.join(accounts, accounts.c.account_id == finetunes.c.account_id)
_IS_OPEN: Final = and_(
    finetunes.c.is_public.is_(True), accounts.c.status == AccountStatus.ACTIVE.value
)
_IS_WHOLE: Final = and_(finetunes.c.rank.is_not(None), finetunes.c.upload_id.is_not(None))


class FinetuneLookup(Store):
    """Looks up finetunes of all accounts."""

    async def find_finetune(self, account_id: AccountId, name: str) -> Finetune | None:
        """What the account means by an id or a name: one of its own, or by its id a public one."""
        may_use: ColumnElement[bool] = finetunes.c.account_id == account_id
        if is_finetune_id(name):
            may_use = or_(may_use, _IS_OPEN)
        query = select(finetunes).select_from(_WITH_OWNERS).where(is_meant(name), may_use)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else to_finetune(row)

    async def list_public_finetune_models(self) -> list[ModelName]:
        """The models that public finetunes are of, once each."""
        query = select(finetunes.c.model).select_from(_WITH_OWNERS).where(_IS_OPEN, _IS_WHOLE)
        async with self._database.read() as connection:
            return [ModelName(row.model) for row in await connection.execute(query.distinct())]

    async def list_public_finetunes(
        self,
        models: Collection[ModelName],
        *,
        order: FinetuneOrder = FinetuneOrder.CREATED,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Finetune]:
        """At most `limit` whole public finetunes of these models, behind the first `offset`."""
        query = (
            select(finetunes)
            .select_from(_WITH_OWNERS)
            .where(_IS_OPEN, _IS_WHOLE, finetunes.c.model.in_(models))
            .order_by(_COLUMNS[order], finetunes.c.finetune_id)
            .limit(check_page_size(limit))
            .offset(offset)
        )
        async with self._database.read() as connection:
            return [to_finetune(row) for row in (await connection.execute(query)).all()]

    async def read_finetune_piece(self, weights_sha256: bytes, index: int) -> bytes | None:
        """A piece of the weights that have this digest; None when nobody has them any more."""
        stored = finetunes.join(
            finetune_pieces, finetune_pieces.c.upload_id == finetunes.c.upload_id
        )
        query = (
            select(finetunes.c.account_id, finetunes.c.upload_id, finetune_pieces.c.sealed)
            .select_from(stored)
            .where(
                finetunes.c.weights_sha256 == weights_sha256,
                finetune_pieces.c.piece_index == index,
            )
            .limit(1)
        )
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None:
                return None
            account_id = AccountId(row.account_id)
            key = await find_data_key(connection, account_id, self._keys)
        if key is None:
            return None
        cell = to_cell(account_id, row.upload_id, index)
        return await asyncio.to_thread(unseal, key, row.sealed, cell)

    async def drop_finetune_pieces(self) -> int:
        """How many pieces were deleted of those that count no more; a number of them at a time."""
        now_ms = read_unix_us(self._clock) // 1000
        over = finetune_uploads.c.held_until_unix_ms <= now_ms
        query = select(finetune_uploads.c.upload_id).where(over).limit(1)
        async with self._database.read() as connection:
            upload_id = (await connection.execute(query)).scalar_one_or_none()
        if upload_id is None:
            return 0
        async with self._database.write() as connection:
            # Nobody adds to it or counts it any more: a lease that has ended is not renewed.
            of_it = finetune_pieces.c.upload_id == upload_id
            some = select(finetune_pieces.c.piece_index).where(of_it).limit(_DROPPED_AT_ONCE)
            indices = list((await connection.execute(some)).scalars())
            doomed = delete(finetune_pieces).where(
                of_it, finetune_pieces.c.piece_index.in_(indices)
            )
            await connection.execute(doomed)
            if len(indices) < _DROPPED_AT_ONCE:
                which = finetune_uploads.c.upload_id == upload_id
                await connection.execute(delete(finetune_uploads).where(which))
        return max(len(indices), 1)
