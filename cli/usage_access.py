"""How commands read the ledger of an account, to be signed.

Owns nothing but the way there. Read next: `tenancy.usage.export_store`, `cli.tenancy_access`.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final

from cli.tenancy_access import TenancyPlace, explain, prepare
from contracts.errors import StoreUnavailable
from contracts.ids import AccountId

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
