"""How old usage leaves the ledger: whole months, by an actor's word. Sums by hour and day stay.

On PostgreSQL a month is a partition that is dropped; on SQLite rows go a few at a time, the oldest
first, so that others write between them. Read next: `tenancy.usage.ledger`.
"""

from typing import Final

from sqlalchemy import delete, func, select, tuple_

from contracts.budgets import first_day_of_month, format_day, to_month
from contracts.errors import InvalidRequest
from contracts.usage import MS_PER_DAY
from tenancy.changes import Action
from tenancy.store import ActingStore
from tenancy.tables import usage_ledger

DROPPED_AT_ONCE: Final = 5_000
"""Rows of SQLite's ledger that leave in one transaction, which takes tens of milliseconds."""
_MS_PER_S: Final = 1000


class UsageRetentionStore(ActingStore):
    """`UsageAdministration` on SQLAlchemy."""

    async def drop_usage_before(self, day: int) -> int:
        """As `UsageAdministration` has it. The log says so before the first record goes."""
        self._require_platform()
        if day > int(self._clock()) * _MS_PER_S // MS_PER_DAY:
            raise InvalidRequest("That day has not come yet.", param="before")
        kept = first_day_of_month(to_month(day))
        async with self._change(Action.USAGE_DROP, moves_epoch=False) as change:
            change.note("usage", before=format_day(kept))
            if self._database.is_postgresql:
                await change.connection.execute(select(func.hearth_drop_usage_before(kept)))
        if not self._database.is_postgresql:
            while await self._drop_oldest_before(kept):
                pass
        return kept

    async def _drop_oldest_before(self, day: int) -> bool:
        """Drops `DROPPED_AT_ONCE` rows of days before `day`; True where there may be more."""
        key = (usage_ledger.c.day, usage_ledger.c.request_id)
        oldest = select(*key).where(usage_ledger.c.day < day).order_by(*key).limit(DROPPED_AT_ONCE)
        async with self._database.write() as connection:
            result = await connection.execute(delete(usage_ledger).where(tuple_(*key).in_(oldest)))
        return result.rowcount == DROPPED_AT_ONCE
