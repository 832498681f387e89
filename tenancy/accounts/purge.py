"""The end of an account: what it owns is deleted, what is encrypted becomes unreadable.

Owns the order of the statements. The account's row stays behind without a name, so that its id is
never given out again and the books keep their owner. Read next: `tenancy.encryption.data_keys`.
"""

from typing import Final

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import Conflict
from contracts.ids import AccountId
from tenancy.encryption.data_keys import delete_data_key
from tenancy.finetunes.rows import disown_pieces
from tenancy.interfaces import AccountStatus
from tenancy.ownership import create_account_not_found, is_living_account
from tenancy.tables import (
    accounts,
    api_tokens,
    batch_items,
    batches,
    finetunes,
    members,
    payload_logs,
    quotas,
)

_OWNED: Final = (api_tokens, members, quotas, batch_items, batches, payload_logs, finetunes)
_NAME: Final = "(purged)"


async def purge_account(
    connection: AsyncConnection, account_id: AccountId, now_unix_us: int
) -> None:
    """Returns once nothing of the account can be used any more.

    Raises: `NotFound`, `Conflict` unless it is suspended: a slip must not end a living tenant.
    """
    condition = is_living_account(account_id)
    query = select(accounts.c.status).where(condition).with_for_update()
    status = (await connection.execute(query)).scalar_one_or_none()
    if status is None:
        raise create_account_not_found()
    if status != AccountStatus.SUSPENDED:
        raise Conflict("Suspend the account before you purge it.")
    # Gateways note uses of tokens in this order, too: neither waits for the other for ever.
    tokens = select(api_tokens.c.api_token_id).where(api_tokens.c.account_id == account_id)
    await connection.execute(tokens.order_by(api_tokens.c.api_token_id).with_for_update())
    await disown_pieces(connection, finetunes.c.account_id == account_id)
    for table in _OWNED:
        await connection.execute(delete(table).where(table.c.account_id == account_id))
    await delete_data_key(connection, account_id)
    await connection.execute(
        update(accounts)
        .where(condition)
        .values(
            name=_NAME,
            purged_unix_us=now_unix_us,
            cache_salt_generation=accounts.c.cache_salt_generation + 1,
            cache_secret=None,
        )
    )
