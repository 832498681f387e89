"""One random data key per account, wrapped by the key ring; deleting it shreds the account.

Owns the statements on `data_keys`. A rotation of the ring wraps the same keys anew, so nothing
that is encrypted under them has to change. Read next: `tenancy.encryption.envelope`.
"""

from typing import Final

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.ids import AccountId
from tenancy.encryption.envelope import (
    DATA_KEY_BYTES,
    Cell,
    derive_wrapping_key,
    seal,
    unseal,
)
from tenancy.encryption.key_ring import Keys
from tenancy.sources import Randomness
from tenancy.tables import data_keys

_COLUMN: Final = "wrapped_key"


async def find_data_key(
    connection: AsyncConnection, account_id: AccountId, keys: Keys
) -> bytes | None:
    """The account's data key, None when it has none (any more).

    Raises: `InvariantBroken` when the ring has lost the key that wraps it.
    """
    query = select(data_keys).where(data_keys.c.account_id == account_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    wrapping_key = derive_wrapping_key(keys.master_keys.get(row.master_key_version))
    return unseal(wrapping_key, row.wrapped_key, _to_cell(account_id))


async def create_data_key(
    connection: AsyncConnection, account_id: AccountId, keys: Keys, randomness: Randomness
) -> bytes:
    """A new data key for an account that has none."""
    data_key = randomness(DATA_KEY_BYTES)
    row = {"account_id": account_id, **_wrap(data_key, account_id, keys, randomness)}
    await connection.execute(insert(data_keys).values(row))
    return data_key


async def delete_data_key(connection: AsyncConnection, account_id: AccountId) -> None:
    """Shreds what is encrypted under the account's key: nothing can read it from now on."""
    await connection.execute(delete(data_keys).where(data_keys.c.account_id == account_id))


async def list_outdated(connection: AsyncConnection, keys: Keys, limit: int) -> list[AccountId]:
    """At most `limit` accounts whose key is wrapped under an older version of the ring."""
    query = (
        select(data_keys.c.account_id)
        .where(data_keys.c.master_key_version != keys.master_keys.current_version)
        .order_by(data_keys.c.account_id)
        .limit(limit)
    )
    return [AccountId(row.account_id) for row in await connection.execute(query)]


async def rewrap_data_key(
    connection: AsyncConnection, account_id: AccountId, keys: Keys, randomness: Randomness
) -> bool:
    """True once the account's key is wrapped under the ring's current version; False without one.

    Raises: `InvariantBroken` when the ring has lost the old version.
    """
    data_key = await find_data_key(connection, account_id, keys)
    if data_key is None:
        return False
    await connection.execute(
        update(data_keys)
        .where(data_keys.c.account_id == account_id)
        .values(_wrap(data_key, account_id, keys, randomness))
    )
    return True


def _wrap(
    data_key: bytes, account_id: AccountId, keys: Keys, randomness: Randomness
) -> dict[str, object]:
    """The columns that hold `data_key`."""
    wrapping_key = derive_wrapping_key(keys.master_keys.current)
    return {
        _COLUMN: seal(wrapping_key, data_key, _to_cell(account_id), randomness),
        "master_key_version": keys.master_keys.current_version,
    }


def _to_cell(account_id: AccountId) -> Cell:
    return Cell("data_keys", account_id, _COLUMN, account_id)
