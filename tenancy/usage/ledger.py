"""The ledger in the database: `UsageLedger` on SQLAlchemy.

Owns the statements that add to `usage_ledger` and read it. A batch goes in as one
transaction together with its sums for the roll-up and with what it takes from the budget slices of
the gateway that wrote it, so that all three agree at any moment. Adding a record again changes
nothing. Read next: `tenancy.usage.roll_up`, `tenancy.usage.budgets`, `tenancy.usage.retention`.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import Row, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.budgets import first_day_of_month, to_month
from contracts.ids import AccountId, RequestId
from contracts.pricing import TokenCounts
from contracts.usage import NodePlace, Outcome, UsageRecord, list_places, read_day
from tenancy.sources import create_id
from tenancy.store import Store
from tenancy.tables import usage_ledger, usage_pending
from tenancy.usage.budgets import charge_slices
from tenancy.usage.sums import sum_records
from tenancy.validation import check_page_size

_by_id: Final = attrgetter("request_id")
_NOWHERE: Final = "[]"
"""Nearly every request is computed where it began."""


class LedgerStore(Store):
    """Adds to the ledger and reads from it."""

    async def append_usage(self, records: Sequence[UsageRecord], owner: str) -> int:
        """How many of `records` the ledger did not have; `owner` names whose slices they spend.

        Raises: `StoreUnavailable`, and nothing was added.
        """
        # In one order: two that add the same rows wait for each other and never in a circle.
        by_id = {one.request_id: one for one in sorted(records, key=_by_id)}
        if not by_id:
            return 0
        if self._database.is_postgresql:
            await self._ensure_partitions({read_day(request_id) for request_id in by_id})
        async with self._database.write() as connection:
            fresh = await _add_new(connection, by_id)
            if fresh:
                sums = sum_records(fresh)
                rows = [{"pending_id": create_id(self._randomness), **one} for one in sums]
                await connection.execute(insert(usage_pending), rows)
                await charge_slices(connection, owner, sums)
        return len(fresh)

    async def list_usage_records(
        self, account_id: AccountId, day: int, *, limit: int = 100, after: RequestId | None = None
    ) -> list[UsageRecord]:
        """At most `limit` records of requests begun on `day`, in order of id, those after `after`.

        Raises: `InvalidRequest` (limit).
        """
        query = (
            select(usage_ledger)
            .where(usage_ledger.c.account_id == account_id, usage_ledger.c.day == day)
            .order_by(usage_ledger.c.request_id)
            .limit(check_page_size(limit))
        )
        if after is not None:
            query = query.where(usage_ledger.c.request_id > after)
        async with self._database.read() as connection:
            return [_to_record(row) for row in await connection.execute(query)]

    async def _ensure_partitions(self, days: set[int]) -> None:
        """Makes the partitions of `days`, which PostgreSQL has."""
        async with self._database.write() as connection:
            for month in sorted({to_month(day) for day in days}):
                first = first_day_of_month(month)
                await connection.execute(select(func.hearth_ensure_usage_partition(first)))


async def _add_new(
    connection: AsyncConnection, by_id: dict[RequestId, UsageRecord]
) -> list[UsageRecord]:
    """Those of the records that the ledger did not have; now it has all of them.

    Hardly ever has it any of them before, so they are looked for only where it refuses them; again
    where another gateway has added some meanwhile. Raises: `IntegrityError` for any other reason.
    """
    fresh = dict(by_id)
    while fresh:
        try:
            async with connection.begin_nested():
                await _insert(connection, fresh.values())
            break
        except IntegrityError:
            known = await _find_known(connection, fresh)
            if not known:
                raise
            for request_id in known:
                del fresh[request_id]
    return list(fresh.values())


async def _insert(connection: AsyncConnection, records: Iterable[UsageRecord]) -> None:
    """Adds rows as the driver takes them: what SQLAlchemy does for each row of a statement is a
    large part of what a request costs in all.
    """
    statement = insert(usage_ledger).compile(dialect=connection.dialect)
    await connection.exec_driver_sql(str(statement), [_to_row(record) for record in records])


async def _find_known(
    connection: AsyncConnection, by_id: dict[RequestId, UsageRecord]
) -> list[RequestId]:
    """The ids among `by_id` that the ledger has already."""
    query = select(usage_ledger.c.request_id).where(
        usage_ledger.c.day.in_({read_day(request_id) for request_id in by_id}),
        usage_ledger.c.request_id.in_(list(by_id)),
    )
    return [RequestId(row.request_id) for row in await connection.execute(query)]


def _to_row(record: UsageRecord) -> tuple[Any, ...]:
    """A record in the order of the table's columns."""
    tokens, places = record.tokens, record.earlier_places
    return (
        read_day(record.request_id),
        record.request_id,
        record.account_id,
        record.api_token_id,
        record.model,
        record.node_id,
        record.region,
        record.gateway_id,
        record.finished_unix_ms,
        record.outcome,
        tokens.num_uncached,
        tokens.num_cached,
        tokens.num_output,
        tokens.num_reasoning,
        record.price_version,
        record.cost_nano,
        record.num_microneurons,
        _write_places(places) if places else _NOWHERE if places is not None else None,
    )


def _to_record(row: Row[Any]) -> UsageRecord:
    """The record a row describes."""
    places = row.earlier_places
    return UsageRecord(
        RequestId(row.request_id),
        row.account_id,
        row.api_token_id,
        row.model,
        row.node_id,
        row.region,
        row.gateway_id,
        row.finished_unix_ms,
        Outcome(row.outcome),
        TokenCounts(row.num_uncached, row.num_cached, row.num_output, row.num_reasoning),
        row.price_version,
        row.cost_nano,
        row.num_microneurons,
        None if places is None else tuple(NodePlace(**place) for place in places),
    )


def _write_places(places: tuple[NodePlace, ...]) -> str:
    """The column's value."""
    return msgspec.json.encode(list_places(places)).decode()
