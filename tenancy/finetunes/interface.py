"""What gateways and owners ask of tenancy about finetunes, as protocols.

Implemented in `tenancy.finetunes.lookup`, `.store` and `.uploads`, on SQLite and PostgreSQL under
the same tests. Read next: `contracts.finetunes`.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Protocol

from contracts.finetunes import (
    AdapterConfig,
    Finetune,
    FinetuneUpload,
    NewFinetune,
    StoredWeights,
)
from contracts.ids import AccountId, FinetuneId, ModelName


class FinetuneOrder(StrEnum):
    """By what a list of finetunes is ordered; the oldest or lowest first."""

    CREATED = "created_at"
    MODIFIED = "modified_at"
    NAME = "name"
    MODEL = "model"
    ID = "id"


class FinetuneDirectory(Protocol):
    """Finetunes of all accounts, for reading. Every method raises `StoreUnavailable`."""

    async def find_finetune(self, account_id: AccountId, name: str) -> Finetune | None:
        """What the account means by an id or a name: one of its own, or by its id a public one."""
        ...

    async def list_public_finetune_models(self) -> list[ModelName]:
        """The models that public finetunes are of, once each."""
        ...

    async def list_public_finetunes(
        self,
        models: Collection[ModelName],
        *,
        order: FinetuneOrder = FinetuneOrder.CREATED,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Finetune]:
        """At most `limit` whole public finetunes of these models, behind the first `offset`."""
        ...

    async def read_finetune_piece(self, weights_sha256: bytes, index: int) -> bytes | None:
        """A piece of the weights that have this digest; None when nobody has them any more."""
        ...

    async def drop_finetune_pieces(self) -> int:
        """How many pieces were deleted of those that count no more; a number of them at a time."""
        ...


class FinetuneAdministration(Protocol):
    """An account's finetunes. What has been uploaded of one is never changed again."""

    async def create_finetune(
        self, account_id: AccountId, new: NewFinetune, max_finetunes: int
    ) -> Finetune:
        """A finetune without files. Raises: `NotFound` (account), `InvalidRequest`, `Conflict` (the
        name is taken, or there are too many).
        """
        ...

    async def list_finetunes(self, account_id: AccountId) -> list[Finetune]:
        """All of the account, oldest first. Raises: `NotFound` (account)."""
        ...

    async def get_finetune(self, account_id: AccountId, name: str) -> Finetune:
        """By id or name. Raises: `NotFound`, also for another account's, be it public or not."""
        ...

    async def delete_finetune(self, account_id: AccountId, finetune_id: FinetuneId) -> None:
        """With its files, and with what is being uploaded. Raises: `NotFound`."""
        ...

    async def set_finetune_config(
        self, account_id: AccountId, finetune_id: FinetuneId, config: AdapterConfig
    ) -> Finetune:
        """The finetune with its configuration, which stays.

        Raises: `NotFound`, `Conflict` (it has one), `InvalidRequest` (the weights' rank differs).
        """
        ...

    async def begin_finetune_upload(
        self, account_id: AccountId, finetune_id: FinetuneId, lease_ms: int
    ) -> FinetuneUpload:
        """An upload of weights, which nobody else can begin until it ends or its lease does.

        Raises: `NotFound`, `Conflict` (there are weights, or somebody is uploading some).
        """
        ...

    async def put_finetune_piece(
        self, upload: FinetuneUpload, index: int, data: bytes, lease_ms: int
    ) -> None:
        """Keeps the next piece and renews the lease. Raises: `Conflict` when the upload is over."""
        ...

    async def finish_finetune_upload(
        self, upload: FinetuneUpload, weights: StoredWeights
    ) -> Finetune:
        """The finetune with these weights, all of whose pieces have been put.

        Raises: `NotFound`, `Conflict` when the upload is over, `InvalidRequest` (the
        configuration's rank differs).
        """
        ...

    async def abandon_finetune_upload(self, upload: FinetuneUpload) -> None:
        """Its pieces do not count and will be deleted; nothing happens if it is over."""
        ...
