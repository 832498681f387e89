"""Usage of a whole account, or of the whole platform, from the sums: for those who run it.

Owns the statements; must not know how sums are made. Read next: `tenancy.usage.roll_up`.
"""

from typing import Any

from sqlalchemy import ColumnElement, Row, Table, func, select

from contracts.ids import AccountId
from contracts.pricing import TokenCounts
from contracts.usage import Step, UsageSummary
from tenancy.store import Store
from tenancy.tables import USAGE_SUMS, usage_daily, usage_hourly
from tenancy.validation import check_page_size

_OF = {Step.HOUR: usage_hourly, Step.DAY: usage_daily}


class SummaryStore(Store):
    """Adds up totals."""

    async def sum_usage(
        self, step: Step, since: int, until: int, account_id: AccountId | None = None
    ) -> dict[int, UsageSummary]:
        """What each hour or day from `since` to before `until` comes to; those with nothing are
        left out. None for `account_id` means every account.
        """
        table = _OF[step]
        period = table.c[step.value]
        query = select(period, *_list_sums(table)).where(period >= since, period < until)
        if account_id is not None:
            query = query.where(table.c.account_id == account_id)
        async with self._database.read() as connection:
            rows = await connection.execute(query.group_by(period).order_by(period))
            return {row[0]: _to_summary(row) for row in rows}

    async def rank_accounts(
        self, step: Step, since: int, until: int, *, limit: int = 10
    ) -> list[tuple[AccountId, UsageSummary]]:
        """At most `limit` accounts with what they used in these periods, the dearest first.

        Raises: `InvalidRequest` (limit).
        """
        table = _OF[step]
        period, account_id = table.c[step.value], table.c.account_id
        cost = func.sum(table.c.cost_nano)
        query = (
            select(account_id, *_list_sums(table))
            .where(period >= since, period < until)
            .group_by(account_id)
            .order_by(cost.desc(), func.sum(table.c.num_requests).desc(), account_id)
            .limit(check_page_size(limit))
        )
        async with self._database.read() as connection:
            return [
                (AccountId(row[0]), _to_summary(row)) for row in await connection.execute(query)
            ]


def _list_sums(table: Table) -> list[ColumnElement[Any]]:
    """Every sum under its own name."""
    return [func.sum(table.c[name]).label(name) for name in USAGE_SUMS]


def _to_summary(row: Row[Any]) -> UsageSummary:
    """The sums of a row; PostgreSQL's are decimals."""
    return UsageSummary(
        num_requests=int(row.num_requests),
        tokens=TokenCounts(
            int(row.num_uncached), int(row.num_cached), int(row.num_output), int(row.num_reasoning)
        ),
        cost_nano=int(row.cost_nano),
        num_microneurons=int(row.num_microneurons),
    )
