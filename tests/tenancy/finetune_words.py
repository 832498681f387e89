"""Words for tests about finetunes in the store: made, uploaded, counted."""

import hashlib
from typing import Any

from sqlalchemy import func, select

from contracts.finetunes import (
    AdapterConfig,
    Finetune,
    FinetuneUpload,
    NewFinetune,
    StoredWeights,
)
from contracts.ids import AccountId, ApiTokenId, ModelName
from tenancy.actors import Actor, ActorKind
from tests.fixtures.acting_tenancy import ActingTenancy

TOKEN = ApiTokenId("1" * 32)
MODEL = ModelName("@cf/meta/llama-3.1-8b-instruct")
CANARY = b"weights-that-nobody-else-may-read"
CONFIG = AdapterConfig(rank=8, alpha=16.0)
LEASE_MS = 60_000
MAX = 30


def act_for(tenancy: ActingTenancy, account_id: AccountId) -> ActingTenancy:
    """The account's own administration."""
    return tenancy.act_as(Actor(ActorKind.API_TOKEN, TOKEN, account_id))


def describe(pieces: list[bytes], rank: int = 8) -> StoredWeights:
    """What is known of weights in these pieces."""
    data = b"".join(pieces)
    return StoredWeights(sha256=hashlib.sha256(data).digest(), num_bytes=len(data), rank=rank)


async def create(
    tenancy: ActingTenancy, account_id: AccountId, name: str = "mine", **more: Any
) -> Finetune:
    new = NewFinetune(name=name, model=more.pop("model", MODEL), **more)
    return await act_for(tenancy, account_id).create_finetune(account_id, new, MAX)


async def begin(tenancy: ActingTenancy, finetune: Finetune) -> FinetuneUpload:
    own = act_for(tenancy, finetune.account_id)
    return await own.begin_finetune_upload(finetune.account_id, finetune.finetune_id, LEASE_MS)


async def upload(
    tenancy: ActingTenancy, finetune: Finetune, pieces: list[bytes], rank: int = 8
) -> Finetune:
    """The finetune with weights in these pieces."""
    own, begun = act_for(tenancy, finetune.account_id), await begin(tenancy, finetune)
    for index, piece in enumerate(pieces):
        await own.put_finetune_piece(begun, index, piece, LEASE_MS)
    return await own.finish_finetune_upload(begun, describe(pieces, rank))


async def complete(
    tenancy: ActingTenancy, finetune: Finetune, pieces: list[bytes] | None = None
) -> Finetune:
    """The finetune with both files."""
    await upload(tenancy, finetune, pieces or [CANARY])
    own = act_for(tenancy, finetune.account_id)
    return await own.set_finetune_config(finetune.account_id, finetune.finetune_id, CONFIG)


async def count(tenancy: ActingTenancy, table: Any) -> int:
    async with tenancy.directory._database.read() as connection:  # pyright: ignore[reportPrivateUsage]
        return (await connection.execute(select(func.count()).select_from(table))).scalar_one()


async def sweep(tenancy: ActingTenancy) -> None:
    """Deletes all pieces that do not count."""
    while await tenancy.drop_finetune_pieces():
        pass
