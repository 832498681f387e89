"""Finetunes as rows, and the conditions that find them.

Owns what an id or a name can mean. Read next: `tenancy.finetunes.store`.
"""

from typing import Any

from sqlalchemy import ColumnElement, Row, and_, false, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import InvalidRequest, NotFound
from contracts.finetunes import AdapterConfig, Finetune, StoredWeights
from contracts.ids import AccountId, FinetuneId, ModelName, is_finetune_id
from tenancy.encryption.envelope import Cell
from tenancy.tables import finetune_uploads, finetunes
from tenancy.validation import check_finetune_name


def create_finetune_not_found() -> NotFound:
    """The error for what the account has no finetune of, whoever else may."""
    return NotFound("The account has no finetune of this id or name.", param="finetune_id")


def is_meant(name: str) -> ColumnElement[bool]:
    """The condition on finetunes of any account that have this id or name. No name looks like an
    id.
    """
    if is_finetune_id(name):
        return finetunes.c.finetune_id == name
    try:
        return finetunes.c.name == check_finetune_name(name)
    except InvalidRequest:  # nothing is called that, and a database may refuse to look
        return false()


def is_own(account_id: AccountId, finetune_id: FinetuneId) -> ColumnElement[bool]:
    """The condition on one finetune of the account."""
    return and_(finetunes.c.account_id == account_id, finetunes.c.finetune_id == finetune_id)


def to_cell(account_id: AccountId, upload_id: str, index: int) -> Cell:
    """Where a piece is stored, for its encryption."""
    return Cell("finetune_pieces", f"{upload_id}/{index}", "sealed", account_id)


def to_finetune(row: Row[Any]) -> Finetune:
    """The finetune that a row describes."""
    config = weights = None
    if row.rank is not None:
        config = AdapterConfig(rank=row.rank, alpha=row.alpha, divides_by_root=row.divides_by_root)
    if row.upload_id is not None:
        weights = StoredWeights(
            sha256=row.weights_sha256, num_bytes=row.num_bytes, rank=row.weights_rank
        )
    return Finetune(
        finetune_id=FinetuneId(row.finetune_id),
        account_id=AccountId(row.account_id),
        name=row.name,
        model=ModelName(row.model),
        description=row.description,
        is_public=row.is_public,
        created_unix_s=row.created_unix_us // 1_000_000,
        modified_unix_s=row.modified_unix_us // 1_000_000,
        config=config,
        weights=weights,
    )


def require_equal_ranks(config: AdapterConfig | None, weights: StoredWeights | None) -> None:
    """Raises `InvalidRequest` when both are known and differ."""
    if config is None or weights is None or config.rank == weights.rank:
        return
    raise InvalidRequest(
        f"`r` in adapter_config.json is {config.rank}, and the matrices in "
        f"adapter_model.safetensors have rank {weights.rank}. What was uploaded before stays: "
        "delete the finetune and create it again to change it.",
        param="file",
    )


async def lock_finetune(
    connection: AsyncConnection, account_id: AccountId, finetune_id: FinetuneId
) -> Finetune:
    """The finetune, which nobody else changes until this transaction ends. Raises: `NotFound`."""
    query = select(finetunes).where(is_own(account_id, finetune_id)).with_for_update()
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise create_finetune_not_found()
    return to_finetune(row)


async def disown_pieces(connection: AsyncConnection, which: ColumnElement[bool]) -> None:
    """Lets nobody count what is stored and being uploaded for finetunes that `which` holds for, and
    whose rows the caller deletes: large files take longer to delete than a transaction may.
    """
    stored = select(
        finetunes.c.upload_id, finetunes.c.finetune_id, finetunes.c.account_id, literal(0)
    ).where(which, finetunes.c.upload_id.is_not(None))
    held = select(finetunes.c.finetune_id).where(which).order_by(finetunes.c.finetune_id)
    # As whoever finishes an upload does: first the finetune, then what is uploaded for it.
    found = list((await connection.execute(held.with_for_update())).scalars())
    await connection.execute(
        update(finetune_uploads)
        .where(finetune_uploads.c.finetune_id.in_(found))
        .values(held_until_unix_ms=0)
    )
    columns = ["upload_id", "finetune_id", "account_id", "held_until_unix_ms"]
    await connection.execute(insert(finetune_uploads).from_select(columns, stored))
