"""Usage by hour and by day: `UsageTotals` on SQLAlchemy.

Owns the statements on `usage_hourly` and `usage_daily`. Gateways only add sums to `usage_pending`;
one worker at a time takes them from there and adds them to the totals, in one transaction, so that
each counts once. Pages come from the totals alone. Read next: `tenancy.usage.ledger`.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, Table, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.ids import AccountId, ApiTokenId, ModelName
from contracts.pricing import TokenCounts
from contracts.usage import Step, UsageCursor, UsageTotal
from tenancy.store import Store
from tenancy.tables import USAGE_SUMS, usage_daily, usage_hourly, usage_pending
from tenancy.usage.sums import HOURS_PER_DAY, Sum, add_up
from tenancy.validation import check_page_size

BATCH_SIZE: Final = 5000
_LOCK_KEY: Final = 0x4845_4152_5448 + 2
_OF = {Step.HOUR: usage_hourly, Step.DAY: usage_daily}


class RollUpStore(Store):
    """Adds up usage and pages through the totals."""

    async def roll_up_usage(self) -> int:
        """How many sums were added to the totals; 0 too while another worker is at it."""
        async with self._database.write() as connection:
            if self._database.is_postgresql and not await _take_turn(connection):
                return 0
            chosen = select(usage_pending.c.pending_id).limit(BATCH_SIZE)
            statement = delete(usage_pending).where(usage_pending.c.pending_id.in_(chosen))
            result = await connection.execute(statement.returning(usage_pending))
            sums: list[Sum] = [dict(row) for row in result.mappings()]
            for one in sums:
                one["day"] = one["hour"] // HOURS_PER_DAY
            for table, period in ((usage_hourly, "hour"), (usage_daily, "day")):
                keys = ("account_id", period, "model", "api_token_id")
                await _add(connection, table, keys, add_up(sums, keys))
        return len(sums)

    async def list_usage(
        self,
        account_id: AccountId,
        step: Step,
        since: int,
        until: int,
        *,
        limit: int = 100,
        after: UsageCursor | None = None,
    ) -> list[UsageTotal]:
        """At most `limit` totals of the hours or days from `since` to before `until`, in order of
        period, model and token, those behind `after`. Raises: `InvalidRequest` (limit).
        """
        table = _OF[step]
        period = table.c[step.value]
        order = (period, table.c.model, table.c.api_token_id)
        query = (
            select(table)
            .where(table.c.account_id == account_id, period >= since, period < until)
            .order_by(*order)
            .limit(check_page_size(limit))
        )
        if after is not None:
            behind = tuple_(*order) > tuple_(after.period, after.model, after.api_token_id)
            query = query.where(period >= after.period, behind)
        async with self._database.read() as connection:
            return [_to_total(row, step) for row in await connection.execute(query)]


async def _take_turn(connection: AsyncConnection) -> bool:
    """True for one transaction at a time; in SQLite there is but one that writes anyway."""
    return bool(
        (await connection.execute(select(func.pg_try_advisory_xact_lock(_LOCK_KEY)))).scalar()
    )


async def _add(
    connection: AsyncConnection, table: Table, keys: Sequence[str], totals: Sequence[Sum]
) -> None:
    """Adds `totals` to the rows that have their keys, or makes them."""
    if not totals:
        return
    kind = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = kind.insert(table)
    more = {name: table.c[name] + statement.excluded[name] for name in USAGE_SUMS}
    upsert = statement.on_conflict_do_update(index_elements=list(keys), set_=more)
    await connection.execute(upsert, totals)


def _to_total(row: Row[Any], step: Step) -> UsageTotal:
    """The total a row describes."""
    return UsageTotal(
        period=row.hour if step is Step.HOUR else row.day,
        model=ModelName(row.model),
        api_token_id=ApiTokenId(row.api_token_id),
        num_requests=row.num_requests,
        tokens=TokenCounts(row.num_uncached, row.num_cached, row.num_output, row.num_reasoning),
        cost_nano=row.cost_nano,
        num_microneurons=row.num_microneurons,
    )
