"""Budgets in the database: `BudgetStore` on SQLAlchemy.

Owns the statements on `budget_slices`. The ledger's sums and the slices of all gateways never
exceed the limit together: a slice is granted from what both leave, and a record takes from its
gateway's slice in the transaction that adds it to the ledger. Slices whose lease has ended count
for nothing. Read next: `tenancy.usage.ledger`.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Row,
    ScalarSelect,
    Table,
    and_,
    case,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.budgets import BudgetKey, BudgetKind, find_days, find_period
from contracts.ids import AccountId, ApiTokenId, ModelName
from contracts.quotas import QuotaScope
from tenancy.store import Store
from tenancy.tables import budget_slices, usage_daily, usage_pending
from tenancy.usage.sums import HOURS_PER_DAY, Sum


class BudgetStore(Store):
    """Leases slices of budgets."""

    async def read_budget(self, key: BudgetKey) -> int:
        """What the ledger has charged to the budget."""
        async with self._database.read() as connection:
            return int((await connection.execute(select(_sum_used(key)))).scalar_one())

    async def lease_budget(
        self, key: BudgetKey, owner: str, limit: int, wanted: int, lease_ms: int
    ) -> int:
        """How much `owner` may spend more: `wanted`, or what the limit leaves of it.

        The lease of all that it holds of this budget ends `lease_ms` from now.
        """
        now_ms = int(self._clock() * 1000)
        async with self._database.write() as connection:
            if self._database.is_postgresql:
                await connection.execute(select(func.pg_advisory_xact_lock(_to_lock_key(key))))
            # One statement, so that a record is seen in the ledger or in its slice, never in none.
            query = select(_sum_used(key), _sum_leased(key, now_ms))
            used, leased = (await connection.execute(query)).one()
            granted = max(0, min(wanted, limit - int(used) - int(leased)))
            await _extend(connection, key, owner, granted, (now_ms, now_ms + lease_ms))
        return granted

    async def renew_budgets(self, owner: str, lease_ms: int) -> None:
        """What `owner` holds stays its own for `lease_ms` from now, but not what it has lost."""
        now_ms = int(self._clock() * 1000)
        statement = (
            update(budget_slices)
            .where(budget_slices.c.owner == owner, budget_slices.c.expires_unix_ms > now_ms)
            .values(expires_unix_ms=now_ms + lease_ms)
        )
        async with self._database.write() as connection:
            await connection.execute(statement)

    async def release_budget(self, key: BudgetKey, owner: str) -> None:
        """Gives back all that `owner` holds of one budget; its records must be in the ledger."""
        async with self._database.write() as connection:
            await connection.execute(delete(budget_slices).where(_is_slice(key, owner)))

    async def drop_budgets(self, owner: str) -> None:
        """Gives back all that `owner` holds; its records must be in the ledger."""
        statement = delete(budget_slices).where(budget_slices.c.owner == owner)
        async with self._database.write() as connection:
            await connection.execute(statement)


async def charge_slices(connection: AsyncConnection, owner: str, sums: Sequence[Sum]) -> None:
    """Takes what records of these sums cost from the slices of `owner`, never below nothing: a
    slice that was lost and leased anew has not been asked for them.
    """
    query = select(budget_slices).where(budget_slices.c.owner == owner)
    for row in (await connection.execute(query)).all():
        key = _to_key(row)
        amount = sum(_read_amount(key.kind, one) for one in sums if _covers(key, one))
        if amount:
            left = budget_slices.c.remaining - amount
            await connection.execute(
                update(budget_slices)
                .where(_is_slice(key, owner))
                .values(remaining=case((left > 0, left), else_=0))
            )


def _covers(key: BudgetKey, one: Sum) -> bool:
    """True when what was summed up is charged to the budget; an hour lies in one period."""
    scope = key.scope
    return (
        scope.account_id == one["account_id"]
        and scope.api_token_id in (None, one["api_token_id"])
        and scope.model in (None, one["model"])
        and key.period == find_period(key.kind, one["hour"] // HOURS_PER_DAY)
    )


def _read_amount(kind: BudgetKind, one: Sum) -> int:
    """What a sum takes from budgets of a kind."""
    return one["num_microneurons"] if kind is BudgetKind.NEURONS else one["cost_nano"]


async def _extend(
    connection: AsyncConnection, key: BudgetKey, owner: str, granted: int, lease: tuple[int, int]
) -> None:
    """Adds to a slice or makes one, in place of one that was lost; `lease` is from when to when."""
    now_ms, expires_ms = lease
    is_held = budget_slices.c.expires_unix_ms > now_ms
    held = case((is_held, budget_slices.c.remaining), else_=0)
    result = await connection.execute(
        update(budget_slices)
        .where(_is_slice(key, owner))
        .values(remaining=held + granted, expires_unix_ms=expires_ms)
    )
    if result.rowcount == 0:
        row = {"owner": owner, "remaining": granted, "expires_unix_ms": expires_ms}
        await connection.execute(insert(budget_slices).values(_to_columns(key) | row))


def _sum_used(key: BudgetKey) -> ScalarSelect[int]:
    """What the ledger has charged: the totals of the days, and what is not in them yet."""
    first, end = find_days(key.kind, key.period)
    daily = _sum_of(usage_daily, key, usage_daily.c.day >= first, usage_daily.c.day < end)
    hours = usage_pending.c.hour
    pending = _sum_of(
        usage_pending, key, hours >= first * HOURS_PER_DAY, hours < end * HOURS_PER_DAY
    )
    return select(daily + pending).scalar_subquery()


def _sum_of(table: Table, key: BudgetKey, *conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    """The budget's amount in the rows of `table`."""
    scope = key.scope
    column = table.c.num_microneurons if key.kind is BudgetKind.NEURONS else table.c.cost_nano
    query = select(func.coalesce(func.sum(column), 0)).where(
        table.c.account_id == scope.account_id, *conditions
    )
    if scope.api_token_id is not None:
        query = query.where(table.c.api_token_id == scope.api_token_id)
    if scope.model is not None:
        query = query.where(table.c.model == scope.model)
    return query.scalar_subquery()


def _sum_leased(key: BudgetKey, now_ms: int) -> ScalarSelect[int]:
    """What all gateways may still spend."""
    query = select(func.coalesce(func.sum(budget_slices.c.remaining), 0)).where(
        _is_budget(key), budget_slices.c.expires_unix_ms > now_ms
    )
    return query.scalar_subquery()


def _to_columns(key: BudgetKey) -> dict[str, Any]:
    """The columns that name a budget."""
    return {
        "account_id": key.scope.account_id,
        "api_token_id": key.scope.api_token_id or "",
        "model": key.scope.model or "",
        "kind": key.kind,
        "period": key.period,
    }


def _is_budget(key: BudgetKey) -> ColumnElement[bool]:
    """The condition on the slices of one budget."""
    return and_(*(budget_slices.c[name] == value for name, value in _to_columns(key).items()))


def _is_slice(key: BudgetKey, owner: str) -> ColumnElement[bool]:
    """The condition on one owner's slice."""
    return and_(_is_budget(key), budget_slices.c.owner == owner)


def _to_key(row: Row[Any]) -> BudgetKey:
    """The budget that a slice belongs to."""
    scope = QuotaScope(
        AccountId(row.account_id),
        ApiTokenId(row.api_token_id) if row.api_token_id else None,
        ModelName(row.model) if row.model else None,
    )
    return BudgetKey(scope, BudgetKind(row.kind), row.period)


def _to_lock_key(key: BudgetKey) -> int:
    """63 bits that stand for a budget among PostgreSQL's advisory locks."""
    return int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(key)).digest()[:8], "big") >> 1
