"""How commands read the ledger of an account, to be signed.

Owns the walk through its pages. Read next: `tenancy.usage.export`, `cli.tenancy_access`.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final

from cli.tenancy_access import TenancyPlace, explain, prepare
from contracts.budgets import format_day
from contracts.errors import StoreUnavailable
from contracts.ids import AccountId

_PAGE_SIZE: Final = 1000


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


async def _export(
    place: TenancyPlace, account_id: AccountId, days: range, write: Callable[[bytes], object]
) -> int:
    from tenancy.directory import create_tenancy
    from tenancy.usage.export import ExportHeader, UsageSealer

    num_records = 0
    try:
        keys = await prepare(place, may_create=False)
        tenancy = create_tenancy(place.database_url, keys, time.time, secrets.token_bytes)
        try:
            sealer = UsageSealer(
                ExportHeader(
                    account_id=account_id,
                    since=format_day(days.start),
                    before=format_day(days.stop),
                    created_unix_s=int(time.time()),
                )
            )
            write(sealer.open())
            for day in days:
                after = None
                while records := await tenancy.list_usage_records(
                    account_id, day, limit=_PAGE_SIZE, after=after
                ):
                    write(sealer.add(records))
                    num_records += len(records)
                    after = records[-1].request_id
            write(sealer.close(keys))
        finally:
            await tenancy.close()
    except StoreUnavailable as error:
        raise explain(place, error) from error
    return num_records
