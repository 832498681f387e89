"""Whether accounts and API tokens exist, and the errors for those that do not.

Owns the checks that several stores make before they write. A purged account is none.
Read next: `tenancy.tables`.
"""

from sqlalchemy import ColumnElement, Table, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import Conflict, NotFound
from contracts.ids import AccountId, ApiTokenId, is_account_id
from tenancy.tables import accounts, api_tokens


def create_account_not_found() -> NotFound:
    """The error for an account id that nobody has."""
    return NotFound("There is no account with this id.", param="account_id")


def create_api_token_not_found() -> NotFound:
    """The error for an id that no token of the account has."""
    return NotFound("The account has no API token with this id.", param="token_id")


def is_living_account(account_id: AccountId) -> ColumnElement[bool]:
    """The condition on one account. Raises: `NotFound` for ids that none can have."""
    if not is_account_id(account_id):
        raise create_account_not_found()
    return and_(accounts.c.account_id == account_id, accounts.c.purged_unix_us.is_(None))


async def require_account(connection: AsyncConnection, account_id: AccountId) -> None:
    """Raises `NotFound` unless the account exists."""
    query = select(accounts.c.account_id).where(is_living_account(account_id))
    if (await connection.execute(query)).one_or_none() is None:
        raise create_account_not_found()


async def require_room(
    connection: AsyncConnection, account_id: AccountId, table: Table, maximum: int
) -> None:
    """Raises unless the account exists and owns fewer than `maximum` rows of `table`.

    Keeps the account from being changed until this transaction ends: two that add a row would
    otherwise both count before either has added it. Raises: `NotFound`, `Conflict`.
    """
    held = select(accounts.c.account_id).where(is_living_account(account_id)).with_for_update()
    if (await connection.execute(held)).one_or_none() is None:
        raise create_account_not_found()
    count = select(func.count()).where(table.c.account_id == account_id)
    if (await connection.execute(count)).scalar_one() >= maximum:
        raise Conflict(f"An account has at most {maximum} of these.")


async def require_api_token(
    connection: AsyncConnection, account_id: AccountId, api_token_id: ApiTokenId
) -> None:
    """Raises `NotFound` unless the token exists and is one of the account."""
    query = select(api_tokens.c.api_token_id).where(
        api_tokens.c.account_id == account_id, api_tokens.c.api_token_id == api_token_id
    )
    if (await connection.execute(query)).one_or_none() is None:
        raise create_api_token_not_found()
