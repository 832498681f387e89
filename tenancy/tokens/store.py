"""API tokens in the database: `ApiTokenDirectory` on SQLAlchemy.

Owns the statements on `api_tokens`, every one of them by (account, id); looking credentials up is
`principals`' part. Read next: `tenancy.directory`.
"""

from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import NotFound
from contracts.ids import AccountId, ApiTokenId, is_account_id
from tenancy.accounts.store import create_account_not_found
from tenancy.interfaces import ApiToken, ApiTokenStatus, IssuedApiToken, Permission, Principal
from tenancy.sources import create_id, read_unix_us
from tenancy.store import Store
from tenancy.tables import accounts, api_tokens
from tenancy.tokens.digests import digest_issued, digest_presented, list_presented_digests
from tenancy.tokens.format import CredentialKind, create_credential, create_hint
from tenancy.tokens.lifetime import check_settable, compute_status
from tenancy.tokens.principals import find_principal_by_digests, to_permissions
from tenancy.validation import check_lifetime, check_name, check_permissions


class ApiTokenStore(Store):
    """Issues, finds and revokes API tokens."""

    async def create_api_token(
        self,
        account_id: AccountId,
        name: str,
        permissions: frozenset[Permission],
        *,
        not_before_unix_s: int | None = None,
        expires_unix_s: int | None = None,
    ) -> IssuedApiToken:
        """Raises: `NotFound` (account), `InvalidRequest`."""
        check_lifetime(not_before_unix_s, expires_unix_s)
        value = create_credential(CredentialKind.API_TOKEN, self._randomness)
        row = {
            "api_token_id": create_id(self._randomness),
            "account_id": account_id,
            "name": check_name(name),
            "hint": create_hint(CredentialKind.API_TOKEN, value),
            "status": ApiTokenStatus.ACTIVE,
            "permissions": sorted(check_permissions(permissions)),
            "digest": digest_issued(value, self._key_ring.peppers.current),
            "pepper_version": self._key_ring.peppers.current_version,
            "issued_unix_us": read_unix_us(self._clock),
            "not_before_unix_s": not_before_unix_s,
            "expires_unix_s": expires_unix_s,
        }
        async with self._database.write() as connection:
            await _require_account(connection, account_id)
            result = await connection.execute(insert(api_tokens).values(row).returning(api_tokens))
            return IssuedApiToken(api_token=self._to_api_token(result.one()), value=value)

    async def get_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> ApiToken:
        """Raises: `NotFound`, also when the token belongs to another account."""
        query = select(api_tokens).where(_is_token(account_id, api_token_id))
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise create_api_token_not_found()
        return self._to_api_token(row)

    async def list_api_tokens(self, account_id: AccountId) -> list[ApiToken]:
        """All tokens of the account, oldest first. Raises: `NotFound` (account)."""
        query = (
            select(api_tokens)
            .where(api_tokens.c.account_id == account_id)
            .order_by(api_tokens.c.issued_unix_us, api_tokens.c.api_token_id)
        )
        async with self._database.read() as connection:
            await _require_account(connection, account_id)
            return [self._to_api_token(row) for row in await connection.execute(query)]

    async def set_api_token_status(
        self, account_id: AccountId, api_token_id: ApiTokenId, status: ApiTokenStatus
    ) -> ApiToken:
        """Enables or disables; `expired` cannot be set. Raises: `NotFound`, `InvalidRequest`."""
        statement = (
            update(api_tokens)
            .where(_is_token(account_id, api_token_id))
            .values(status=check_settable(status))
            .returning(api_tokens)
        )
        async with self._write_and_bump() as connection:
            row = (await connection.execute(statement)).one_or_none()
            if row is None:
                raise create_api_token_not_found()
            return self._to_api_token(row)

    async def delete_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> None:
        """Raises: `NotFound`."""
        statement = delete(api_tokens).where(_is_token(account_id, api_token_id))
        async with self._write_and_bump() as connection:
            if (await connection.execute(statement)).rowcount == 0:
                raise create_api_token_not_found()

    def digest_api_token(self, value: str) -> bytes | None:
        """Digest under the current pepper, or None when shape or checksum is wrong: no I/O."""
        return digest_presented(CredentialKind.API_TOKEN, value, self._key_ring.peppers.current)

    async def find_principal(self, value: str) -> Principal | None:
        """The principal whose token has this value, whatever its status; None when unknown."""
        digests = list_presented_digests(CredentialKind.API_TOKEN, value, self._key_ring.peppers)
        if not digests:
            return None
        async with self._database.read() as connection:
            return await find_principal_by_digests(connection, digests, self._key_ring.master_keys)

    def _to_api_token(self, row: Row[Any]) -> ApiToken:
        """The API token a row describes, its status as of now."""
        return ApiToken(
            api_token_id=ApiTokenId(row.api_token_id),
            account_id=AccountId(row.account_id),
            name=row.name,
            hint=row.hint,
            status=compute_status(
                ApiTokenStatus(row.status), row.expires_unix_s, read_unix_us(self._clock)
            ),
            permissions=to_permissions(row.permissions),
            issued_unix_s=row.issued_unix_us // 1_000_000,
            not_before_unix_s=row.not_before_unix_s,
            expires_unix_s=row.expires_unix_s,
        )


def create_api_token_not_found() -> NotFound:
    """The error for an id that no token of the account has."""
    return NotFound("The account has no API token with this id.", param="token_id")


def _is_token(account_id: AccountId, api_token_id: ApiTokenId) -> ColumnElement[bool]:
    """The condition on one token of one account; malformed ids never reach the database."""
    if not (is_account_id(account_id) and is_account_id(api_token_id)):
        raise create_api_token_not_found()
    return and_(
        api_tokens.c.account_id == account_id,
        api_tokens.c.api_token_id == api_token_id,
    )


async def _require_account(connection: AsyncConnection, account_id: AccountId) -> None:
    """Raises `NotFound` unless the account exists."""
    query = select(accounts.c.account_id).where(accounts.c.account_id == account_id)
    if not is_account_id(account_id) or (await connection.execute(query)).one_or_none() is None:
        raise create_account_not_found()
