"""Finetunes in the database, as their accounts change them: `FinetuneAdministration` on SQLAlchemy.

Owns the statements on `finetunes`; gateways forget what they know of them with each epoch. Read
next: `tenancy.finetunes.uploads` (the rest of it), `tenancy.finetunes.lookup`.
"""

from sqlalchemy import delete, insert, select, update

from contracts.errors import Conflict
from contracts.finetunes import AdapterConfig, Finetune, NewFinetune
from contracts.ids import AccountId, FinetuneId, create_request_id
from tenancy.changes import Action
from tenancy.finetunes.rows import (
    create_finetune_not_found,
    disown_pieces,
    is_meant,
    is_own,
    lock_finetune,
    require_equal_ranks,
    to_finetune,
)
from tenancy.finetunes.uploads import FinetuneUploadStore
from tenancy.ownership import require_account, require_room
from tenancy.sources import read_unix_us
from tenancy.tables import finetunes
from tenancy.validation import check_description, check_finetune_name

_RANDOM_BYTES = 10


class FinetuneStore(FinetuneUploadStore):
    """What one actor may do with finetunes."""

    async def create_finetune(
        self, account_id: AccountId, new: NewFinetune, max_finetunes: int
    ) -> Finetune:
        """A finetune without files. Raises: `NotFound` (account), `InvalidRequest`, `Conflict` (the
        name is taken, or there are too many).
        """
        self._require_own(account_id)
        name, description = check_finetune_name(new.name), check_description(new.description)
        now_us = read_unix_us(self._clock)
        randomness = int.from_bytes(self._randomness(_RANDOM_BYTES), "big")
        row = {
            "finetune_id": create_request_id(now_us // 1000, randomness),
            "account_id": account_id,
            "name": name,
            "model": new.model,
            "description": description,
            "is_public": new.is_public,
            "created_unix_us": now_us,
            "modified_unix_us": now_us,
        }
        named = (finetunes.c.account_id == account_id) & (finetunes.c.name == name)
        async with self._change(Action.FINETUNE_CREATE) as change:
            # The account's row is held from here on: nobody takes the name meanwhile.
            await require_room(change.connection, account_id, finetunes, max_finetunes)
            taken = await change.connection.execute(select(finetunes.c.name).where(named))
            if taken.one_or_none() is not None:
                raise Conflict("The account has a finetune of this name.", param="name")
            result = await change.connection.execute(
                insert(finetunes).values(row).returning(finetunes)
            )
            finetune = to_finetune(result.one())
            change.note(
                finetune.finetune_id,
                account_id,
                name=name,
                model=new.model,
                public=new.is_public,
            )
            return finetune

    async def list_finetunes(self, account_id: AccountId) -> list[Finetune]:
        """All of the account, oldest first. Raises: `NotFound` (account)."""
        self._require_own(account_id)
        query = (
            select(finetunes)
            .where(finetunes.c.account_id == account_id)
            .order_by(finetunes.c.created_unix_us, finetunes.c.finetune_id)
        )
        async with self._database.read() as connection:
            await require_account(connection, account_id)
            return [to_finetune(row) for row in (await connection.execute(query)).all()]

    async def get_finetune(self, account_id: AccountId, name: str) -> Finetune:
        """By id or name. Raises: `NotFound`, also for another account's, be it public or not."""
        self._require_own(account_id)
        query = select(finetunes).where(finetunes.c.account_id == account_id, is_meant(name))
        async with self._database.read() as connection:
            await require_account(connection, account_id)
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise create_finetune_not_found()
        return to_finetune(row)

    async def delete_finetune(self, account_id: AccountId, finetune_id: FinetuneId) -> None:
        """With its files, and with what is being uploaded. Raises: `NotFound`."""
        self._require_own(account_id)
        which = is_own(account_id, finetune_id)
        async with self._change(Action.FINETUNE_DELETE) as change:
            finetune = await lock_finetune(change.connection, account_id, finetune_id)
            await disown_pieces(change.connection, which)
            await change.connection.execute(delete(finetunes).where(which))
            change.note(finetune_id, account_id, name=finetune.name)

    async def set_finetune_config(
        self, account_id: AccountId, finetune_id: FinetuneId, config: AdapterConfig
    ) -> Finetune:
        """The finetune with its configuration, which stays.

        Raises: `NotFound`, `Conflict` (it has one), `InvalidRequest` (the weights' rank differs).
        """
        self._require_own(account_id)
        async with self._change(Action.FINETUNE_UPLOAD) as change:
            finetune = await lock_finetune(change.connection, account_id, finetune_id)
            if finetune.config is not None:
                raise Conflict(
                    "The finetune has its adapter_config.json: files cannot be changed once they "
                    "are uploaded.",
                    param="file_name",
                )
            require_equal_ranks(config, finetune.weights)
            statement = update(finetunes).where(is_own(account_id, finetune_id))
            result = await change.connection.execute(
                statement.values(
                    rank=config.rank,
                    alpha=config.alpha,
                    divides_by_root=config.divides_by_root,
                    modified_unix_us=read_unix_us(self._clock),
                ).returning(finetunes)
            )
            change.note(finetune_id, account_id, file="adapter_config.json", rank=config.rank)
            return to_finetune(result.one())
