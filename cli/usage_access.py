"""How commands read the ledger of an account, to be signed, and its sums.

Owns nothing but the way there. Read next: `tenancy.usage.export_store`, `cli.tenancy_place`.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cli.tenancy_place import TenancyPlace, explain, prepare
from contracts.errors import StoreUnavailable
from contracts.ids import AccountId

if TYPE_CHECKING:
    from contracts.usage import Step, UsageTotal

_PAGE: Final = 1000
_NUM_FRAMING: Final = 2
"""Lines around the records: the header and the seal."""


def export_usage(
    place: TenancyPlace, account_id: AccountId, days: range, write: Callable[[bytes], object]
) -> int:
    """How many records of requests that began on `days` were written.

    Raises: `CommandFailed`, `SettingsError`.
    """
    return asyncio.run(_export(place, account_id, days, write))


def find_export_key(place: TenancyPlace) -> str:
    """The key that verifies exports. Raises: `CommandFailed`, `SettingsError`."""
    from tenancy.usage.export import find_public_key

    return find_public_key(asyncio.run(prepare(place, may_create=False)))


def list_totals(
    place: TenancyPlace, account_id: AccountId, step: "Step", periods: range
) -> "list[UsageTotal]":
    """The account's totals of these hours or days, as far as gateways have added them up.

    Raises: `CommandFailed`, `SettingsError`.
    """
    return asyncio.run(_list_totals(place, account_id, step, periods))


async def _list_totals(
    place: TenancyPlace, account_id: AccountId, step: "Step", periods: range
) -> "list[UsageTotal]":
    from contracts.usage import UsageCursor
    from tenancy.directory import create_tenancy

    totals: list[UsageTotal] = []
    try:
        keys = await prepare(place, may_create=False)
        tenancy = create_tenancy(place.database_url, keys, time.time, secrets.token_bytes)
        try:
            after: UsageCursor | None = None
            while True:
                page = await tenancy.list_usage(
                    account_id, step, periods.start, periods.stop, limit=_PAGE, after=after
                )
                totals += page
                if len(page) < _PAGE:
                    return totals
                last = page[-1]
                after = UsageCursor(last.period, last.model, last.api_token_id)
        finally:
            await tenancy.close()
    except StoreUnavailable as error:
        raise explain(place, error) from error


async def _export(
    place: TenancyPlace, account_id: AccountId, days: range, write: Callable[[bytes], object]
) -> int:
    from contracts.usage import ExportForm
    from tenancy.directory import create_tenancy

    num_lines = 0
    try:
        keys = await prepare(place, may_create=False)
        tenancy = create_tenancy(place.database_url, keys, time.time, secrets.token_bytes)
        try:
            async for lines in tenancy.export_usage(account_id, days, ExportForm.JSONL):
                write(lines)
                num_lines += lines.count(b"\n")
        finally:
            await tenancy.close()
    except StoreUnavailable as error:
        raise explain(place, error) from error
    return num_lines - _NUM_FRAMING
