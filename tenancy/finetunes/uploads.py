"""Weights on their way into the database: the part of `FinetuneAdministration` with large files.

A piece at a time, each in a transaction of its own. What has been put counts for nobody before the
upload is finished, in one transaction with its audit entry; until then a row in `finetune_uploads`
says whose it is, and for how long. Read next: `tenancy.finetunes.lookup`, which deletes the rest.
"""

import asyncio
from typing import Final

from sqlalchemy import ColumnElement, and_, delete, insert, select, update

from contracts.errors import Conflict, InvariantBroken
from contracts.finetunes import Finetune, FinetuneUpload, StoredWeights
from contracts.ids import AccountId, FinetuneId
from tenancy.changes import Action
from tenancy.encryption.data_keys import create_data_key, find_data_key
from tenancy.encryption.envelope import seal
from tenancy.finetunes.rows import (
    is_own,
    lock_finetune,
    require_equal_ranks,
    to_cell,
    to_finetune,
)
from tenancy.ownership import create_account_not_found, is_living_account
from tenancy.sources import create_id, read_unix_us
from tenancy.store import ActingStore
from tenancy.tables import accounts, finetune_pieces, finetune_uploads, finetunes

_LOST: Final = "The upload is over: it took too long, or its finetune was deleted. Begin it again."


class FinetuneUploadStore(ActingStore):
    """What one actor may upload."""

    async def begin_finetune_upload(
        self, account_id: AccountId, finetune_id: FinetuneId, lease_ms: int
    ) -> FinetuneUpload:
        """An upload of weights, which nobody else can begin until it ends or its lease does.

        Raises: `NotFound`, `Conflict` (there are weights, or somebody is uploading some).
        """
        self._require_own(account_id)
        upload = FinetuneUpload(
            upload_id=create_id(self._randomness), account_id=account_id, finetune_id=finetune_id
        )
        async with self._database.write() as connection:
            held = select(accounts.c.account_id).where(is_living_account(account_id))
            if (await connection.execute(held.with_for_update())).one_or_none() is None:
                raise create_account_not_found()
            finetune = await lock_finetune(connection, account_id, finetune_id)
            if finetune.weights is not None:
                raise Conflict(
                    "The finetune has its adapter_model.safetensors: files cannot be changed once "
                    "they are uploaded.",
                    param="file_name",
                )
            of_it = finetune_uploads.c.finetune_id == finetune_id
            others = select(finetune_uploads.c.upload_id).where(of_it, self._is_held())
            if (await connection.execute(others.limit(1))).first() is not None:
                raise Conflict(
                    "Another upload of the finetune's adapter_model.safetensors is under way.",
                    param="file_name",
                )
            if await find_data_key(connection, account_id, self._keys) is None:
                # an account of a version that made none
                await create_data_key(connection, account_id, self._keys, self._randomness)
            row = {
                "upload_id": upload.upload_id,
                "account_id": account_id,
                "finetune_id": finetune_id,
                "held_until_unix_ms": self._read_unix_ms() + lease_ms,
            }
            await connection.execute(insert(finetune_uploads).values(row))
        return upload

    async def put_finetune_piece(
        self, upload: FinetuneUpload, index: int, data: bytes, lease_ms: int
    ) -> None:
        """Keeps the next piece and renews the lease. Raises: `Conflict` when the upload is over."""
        self._require_own(upload.account_id)
        async with self._database.write() as connection:
            renewed = (
                update(finetune_uploads)
                .where(self._is_under_way(upload))
                .values(held_until_unix_ms=self._read_unix_ms() + lease_ms)
            )
            if (await connection.execute(renewed)).rowcount == 0:
                raise Conflict(_LOST)
            key = await find_data_key(connection, upload.account_id, self._keys)
            if key is None:
                raise InvariantBroken("An account with an upload has lost its key.")
            cell = to_cell(upload.account_id, upload.upload_id, index)
            # A megabyte: others' answers go on meanwhile.
            sealed = await asyncio.to_thread(seal, key, data, cell, self._randomness)
            row = {"upload_id": upload.upload_id, "piece_index": index, "sealed": sealed}
            await connection.execute(insert(finetune_pieces).values(row))

    async def finish_finetune_upload(
        self, upload: FinetuneUpload, weights: StoredWeights
    ) -> Finetune:
        """The finetune with these weights, all of whose pieces have been put.

        Raises: `NotFound`, `Conflict` when the upload is over, `InvalidRequest` (the
        configuration's rank differs).
        """
        account_id, finetune_id = upload.account_id, upload.finetune_id
        self._require_own(account_id)
        async with self._change(Action.FINETUNE_UPLOAD) as change:
            finetune = await lock_finetune(change.connection, account_id, finetune_id)
            over = delete(finetune_uploads).where(self._is_under_way(upload))
            if (await change.connection.execute(over)).rowcount == 0:
                raise Conflict(_LOST)
            require_equal_ranks(finetune.config, weights)
            statement = update(finetunes).where(is_own(account_id, finetune_id))
            result = await change.connection.execute(
                statement.values(
                    upload_id=upload.upload_id,
                    weights_sha256=weights.sha256,
                    num_bytes=weights.num_bytes,
                    weights_rank=weights.rank,
                    modified_unix_us=read_unix_us(self._clock),
                ).returning(finetunes)
            )
            change.note(
                finetune_id,
                account_id,
                file="adapter_model.safetensors",
                num_bytes=weights.num_bytes,
                sha256=weights.sha256.hex(),
            )
            return to_finetune(result.one())

    async def abandon_finetune_upload(self, upload: FinetuneUpload) -> None:
        """Its pieces do not count and will be deleted; nothing happens if it is over."""
        self._require_own(upload.account_id)
        which = finetune_uploads.c.upload_id == upload.upload_id
        async with self._database.write() as connection:
            statement = update(finetune_uploads).where(which).values(held_until_unix_ms=0)
            await connection.execute(statement)

    def _is_under_way(self, upload: FinetuneUpload) -> ColumnElement[bool]:
        """The condition on the upload's row while its lease lasts."""
        return and_(
            finetune_uploads.c.upload_id == upload.upload_id,
            finetune_uploads.c.finetune_id == upload.finetune_id,
            finetune_uploads.c.account_id == upload.account_id,
            self._is_held(),
        )

    def _is_held(self) -> ColumnElement[bool]:
        return finetune_uploads.c.held_until_unix_ms > self._read_unix_ms()

    def _read_unix_ms(self) -> int:
        return read_unix_us(self._clock) // 1000
