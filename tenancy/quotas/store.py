"""Quotas in the database: `QuotaAdministration` on SQLAlchemy.

Owns the statements on `quotas`; a scope without token or model has empty text there. Every change
bumps the epoch, so that gateways see it within two seconds. Read next: `tenancy.quotas.rules`.
"""

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, and_, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import NotFound
from contracts.ids import AccountId, ApiTokenId, ModelName
from contracts.quotas import Quota, QuotaLimits, QuotaScope
from tenancy.changes import Action
from tenancy.ownership import require_account, require_api_token
from tenancy.quotas.rules import check_limits, check_scope
from tenancy.store import ActingStore, Change
from tenancy.tables import quotas


class QuotaStore(ActingStore):
    """Sets, lists and removes quotas."""

    async def set_quota(self, scope: QuotaScope, limits: QuotaLimits) -> Quota:
        """The scope's limits from now on. Raises: `NotFound` (account, token), `InvalidRequest`."""
        check_scope(scope)
        row = msgspec.structs.asdict(check_limits(limits))
        row |= {
            "account_id": scope.account_id,
            "api_token_id": scope.api_token_id or "",
            "model": scope.model or "",
        }
        self._require_platform()
        async with self._change(Action.QUOTA_SET) as change:
            await _require_owner(change.connection, scope)
            await change.connection.execute(delete(quotas).where(_is_scope(scope)))
            await change.connection.execute(insert(quotas).values(row))
            _note(change, scope, limits)
        return Quota(scope, limits)

    async def delete_quota(self, scope: QuotaScope) -> None:
        """Raises: `NotFound`."""
        self._require_platform()
        async with self._change(Action.QUOTA_DELETE) as change:
            result = await change.connection.execute(delete(quotas).where(_is_scope(scope)))
            if result.rowcount == 0:
                raise create_quota_not_found()
            _note(change, scope, None)

    async def list_quotas(self, account_id: AccountId) -> list[Quota]:
        """All quotas of the account, its tokens and models. Raises: `NotFound` (account)."""
        self._require_own(account_id)
        query = (
            select(quotas)
            .where(quotas.c.account_id == account_id)
            .order_by(quotas.c.api_token_id, quotas.c.model)
        )
        async with self._database.read() as connection:
            await require_account(connection, account_id)
            return [_to_quota(row) for row in await connection.execute(query)]


async def find_quotas_of_token(
    connection: AsyncConnection, account_id: AccountId, api_token_id: ApiTokenId
) -> tuple[Quota, ...]:
    """The quotas that requests of one token fall under, those of its account included."""
    query = (
        select(quotas)
        .where(quotas.c.account_id == account_id, quotas.c.api_token_id.in_(("", api_token_id)))
        .order_by(quotas.c.api_token_id, quotas.c.model)
    )
    return tuple(_to_quota(row) for row in await connection.execute(query))


async def delete_quotas_of_token(
    connection: AsyncConnection, account_id: AccountId, api_token_id: ApiTokenId
) -> None:
    """Forgets what a token might use, together with the token itself."""
    statement = delete(quotas).where(
        quotas.c.account_id == account_id, quotas.c.api_token_id == api_token_id
    )
    await connection.execute(statement)


def create_quota_not_found() -> NotFound:
    """The error for a scope without limits."""
    return NotFound("No limits are set for this scope.", param="scope")


def _note(change: Change, scope: QuotaScope, limits: QuotaLimits | None) -> None:
    """Says for the audit log whose limits change."""
    owner = scope.api_token_id or scope.account_id
    told = None if limits is None else msgspec.to_builtins(limits)
    change.note(owner, scope.account_id, model=scope.model, limits=told)


async def _require_owner(connection: AsyncConnection, scope: QuotaScope) -> None:
    """Raises `NotFound` unless the scope's account exists, and its token is one of the account."""
    await require_account(connection, scope.account_id)
    if scope.api_token_id is not None:
        await require_api_token(connection, scope.account_id, scope.api_token_id)


def _is_scope(scope: QuotaScope) -> ColumnElement[bool]:
    """The condition on one scope's row."""
    return and_(
        quotas.c.account_id == scope.account_id,
        quotas.c.api_token_id == (scope.api_token_id or ""),
        quotas.c.model == (scope.model or ""),
    )


def _to_quota(row: Row[Any]) -> Quota:
    """The quota a row describes."""
    fields = row._mapping  # pyright: ignore[reportPrivateUsage] - SQLAlchemy's public accessor
    names = QuotaLimits.__struct_fields__
    scope = QuotaScope(
        AccountId(row.account_id),
        ApiTokenId(row.api_token_id) if row.api_token_id else None,
        ModelName(row.model) if row.model else None,
    )
    return Quota(scope, QuotaLimits(**{name: fields[name] for name in names}))
