"""Exports of an account's ledger, read page by page while they are written.

Owns the walk and the two forms: JSON lines that are signed, and a table for spreadsheets, which is
not. No field of either is a tenant's free text. Read next: `tenancy.usage.export`.
"""

import csv
import io
from collections.abc import AsyncGenerator
from typing import Final

from contracts.budgets import format_day
from contracts.ids import AccountId
from contracts.pricing import TokenCounts
from contracts.usage import ExportForm, NodePlace, UsageRecord
from tenancy.usage.export import ExportHeader, UsageSealer, to_fields
from tenancy.usage.ledger import LedgerStore

_PAGE_SIZE: Final = 1000
_PLACES: Final = "earlier_places"
COLUMNS: Final = (
    *(name for name in UsageRecord.__struct_fields__ if name not in ("tokens", _PLACES)),
    *TokenCounts.__struct_fields__,
    _PLACES,
)
"""New ones come last: who reads a table by position finds the others where they were."""


class ExportStore(LedgerStore):
    """Writes exports."""

    async def export_usage(
        self, account_id: AccountId, days: range, form: ExportForm
    ) -> AsyncGenerator[bytes]:
        """An export of requests that began on `days`, piece by piece, in order of their ids.

        Raises: `StoreUnavailable`, then it ends without its last line.
        """
        if form is ExportForm.CSV:
            yield _write_rows([COLUMNS])
            async for records in self._walk(account_id, days):
                yield _write_rows([_to_cells(record) for record in records])
            return
        sealer = UsageSealer(
            ExportHeader(
                account_id=account_id,
                since=format_day(days.start),
                before=format_day(days.stop),
                created_unix_s=int(self._clock()),
            )
        )
        yield sealer.open()
        async for records in self._walk(account_id, days):
            yield sealer.add(records)
        yield sealer.close(self._keys)

    async def _walk(self, account_id: AccountId, days: range) -> AsyncGenerator[list[UsageRecord]]:
        """Every record, a page at a time."""
        for day in days:
            after = None
            while records := await self.list_usage_records(
                account_id, day, limit=_PAGE_SIZE, after=after
            ):
                yield records
                after = records[-1].request_id


def _to_cells(record: UsageRecord) -> tuple[object, ...]:
    """A record in the order of the columns."""
    fields = to_fields(record) | {_PLACES: _format_places(record.earlier_places)}
    return tuple(fields[name] for name in COLUMNS)


def _format_places(places: tuple[NodePlace, ...] | None) -> str:
    """Places as `node@region`, with blanks between them; `unknown` where the gateway told none."""
    if places is None:
        return "unknown"
    return " ".join(f"{place.node_id}@{place.region}" for place in places)


def _write_rows(rows: list[tuple[object, ...]] | list[tuple[str, ...]]) -> bytes:
    """The rows as lines."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()
