"""API tokens in the database: `ApiTokenAdministration` on SQLAlchemy.

Owns the statements on `api_tokens`, every one of them by (account, id); looking credentials up is
`principals`' part. Read next: `tenancy.tokens.grants`, `tenancy.directory`.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.ids import AccountId, ApiTokenId, is_account_id
from tenancy.changes import Action, ApiTokenChange
from tenancy.interfaces import ApiToken, ApiTokenStatus, IssuedApiToken
from tenancy.ownership import create_api_token_not_found, require_account, require_room
from tenancy.policies import AddressCondition, AnyPolicies
from tenancy.quotas.store import delete_quotas_of_token
from tenancy.sources import create_id, read_unix_us
from tenancy.store import ActingStore
from tenancy.tables import api_tokens
from tenancy.tokens.columns import is_harmless, to_api_token, to_columns
from tenancy.tokens.grants import require_grantable, to_grant
from tenancy.tokens.values import issue_value

MAX_API_TOKENS: Final = 500


class ApiTokenStore(ActingStore):
    """Issues, changes and revokes API tokens."""

    async def create_api_token(
        self,
        account_id: AccountId,
        name: str,
        policies: AnyPolicies,
        *,
        condition: AddressCondition | None = None,
        not_before_unix_s: int | None = None,
        expires_unix_s: int | None = None,
    ) -> IssuedApiToken:
        """Raises: `NotFound` (account), `InvalidRequest`, `Forbidden`, `Conflict` (too many)."""
        self._require_own(account_id)
        wanted = ApiTokenChange(
            name=name,
            policies=policies,
            condition=condition,
            not_before_unix_s=not_before_unix_s,
            expires_unix_s=expires_unix_s,
        )
        columns = to_columns(wanted, None)
        value, value_columns = issue_value(self._keys, self._randomness)
        api_token_id = create_id(self._randomness)
        row = {
            "api_token_id": api_token_id,
            "account_id": account_id,
            "status": ApiTokenStatus.ACTIVE,
            "issued_unix_us": read_unix_us(self._clock),
            **columns,
            **value_columns,
        }
        async with self._change(Action.API_TOKEN_CREATE, moves_epoch=False) as change:
            connection = change.connection
            await require_room(connection, account_id, api_tokens, MAX_API_TOKENS)
            await self._require_grantable(connection, columns)
            result = await connection.execute(insert(api_tokens).values(row).returning(api_tokens))
            change.note(api_token_id, account_id, **columns)
            return IssuedApiToken(
                api_token=to_api_token(result.one(), read_unix_us(self._clock)), value=value
            )

    async def get_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> ApiToken:
        """Raises: `NotFound`, also when the token belongs to another account."""
        self._require_own(account_id)
        query = select(api_tokens).where(_is_token(account_id, api_token_id))
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise create_api_token_not_found()
        return to_api_token(row, read_unix_us(self._clock))

    async def list_api_tokens(self, account_id: AccountId) -> list[ApiToken]:
        """All tokens of the account, oldest first. Raises: `NotFound` (account)."""
        self._require_own(account_id)
        query = (
            select(api_tokens)
            .where(api_tokens.c.account_id == account_id)
            .order_by(api_tokens.c.issued_unix_us, api_tokens.c.api_token_id)
        )
        async with self._database.read() as connection:
            await require_account(connection, account_id)
            return [
                to_api_token(row, read_unix_us(self._clock))
                for row in await connection.execute(query)
            ]

    async def change_api_token(
        self, account_id: AccountId, api_token_id: ApiTokenId, change: ApiTokenChange
    ) -> ApiToken:
        """Raises: `NotFound`, `InvalidRequest`, `Forbidden`."""
        async with self._change(Action.API_TOKEN_UPDATE) as changing:
            connection = changing.connection
            row = await self._hold_token(connection, account_id, api_token_id)
            columns = to_columns(change, row)
            if not is_harmless(columns):
                await self._require_grantable(connection, {**row, **columns})
            changed = await self._update_token(connection, account_id, api_token_id, columns)
            changing.note(api_token_id, account_id, **columns)
            return changed

    async def set_api_token_status(
        self, account_id: AccountId, api_token_id: ApiTokenId, status: ApiTokenStatus
    ) -> ApiToken:
        """Enables or disables; `expired` cannot be set. Raises: `NotFound`, `InvalidRequest`."""
        return await self.change_api_token(account_id, api_token_id, ApiTokenChange(status=status))

    async def roll_api_token(
        self, account_id: AccountId, api_token_id: ApiTokenId
    ) -> IssuedApiToken:
        """The token with a new value; the old one is void. Raises: `NotFound`, `Forbidden`.

        Whoever rolls a token learns its value, so they must hold what it grants.
        """
        value, columns = issue_value(self._keys, self._randomness)
        async with self._change(Action.API_TOKEN_ROLL) as change:
            connection = change.connection
            row = await self._hold_token(connection, account_id, api_token_id)
            await self._require_grantable(connection, row)
            rolled = await self._update_token(connection, account_id, api_token_id, columns)
            change.note(api_token_id, account_id)
            return IssuedApiToken(api_token=rolled, value=value)

    async def delete_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> None:
        """Raises: `NotFound`."""
        self._require_own(account_id)
        statement = delete(api_tokens).where(_is_token(account_id, api_token_id))
        async with self._change(Action.API_TOKEN_DELETE) as change:
            if (await change.connection.execute(statement)).rowcount == 0:
                raise create_api_token_not_found()
            await delete_quotas_of_token(change.connection, account_id, api_token_id)
            change.note(api_token_id, account_id)

    async def _hold_token(
        self, connection: AsyncConnection, account_id: AccountId, api_token_id: ApiTokenId
    ) -> RowMapping:
        """The token's row, which nobody else changes until this transaction ends."""
        self._require_own(account_id)
        query = select(api_tokens).where(_is_token(account_id, api_token_id)).with_for_update()
        row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            raise create_api_token_not_found()
        return row

    async def _update_token(
        self,
        connection: AsyncConnection,
        account_id: AccountId,
        api_token_id: ApiTokenId,
        columns: dict[str, Any],
    ) -> ApiToken:
        """The token with `columns` set."""
        statement = (
            update(api_tokens)
            .where(_is_token(account_id, api_token_id))
            .values({**columns, "modified_unix_us": read_unix_us(self._clock)})
            .returning(api_tokens)
        )
        return to_api_token((await connection.execute(statement)).one(), read_unix_us(self._clock))

    async def _require_grantable(
        self, connection: AsyncConnection, columns: Mapping[Any, Any]
    ) -> None:
        """Raises `Forbidden` when a token of these columns could do more than the actor."""
        wanted = to_grant(columns)
        await require_grantable(connection, self._actor, wanted, read_unix_us(self._clock))


def _is_token(account_id: AccountId, api_token_id: ApiTokenId) -> ColumnElement[bool]:
    """The condition on one token of one account; malformed ids never reach the database."""
    if not (is_account_id(account_id) and is_account_id(api_token_id)):
        raise create_api_token_not_found()
    return and_(
        api_tokens.c.account_id == account_id,
        api_tokens.c.api_token_id == api_token_id,
    )
