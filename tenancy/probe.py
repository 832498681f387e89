"""One look at the database from outside: how long it takes to answer, what time it has, the prices
in it and which accounts have rules on regions.

For whoever sets an installation up. Read next: `tenancy.db`, `cli.doctor.store_checks`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import func, select

from contracts.ids import AccountId
from contracts.pricing import Price
from contracts.region_rules import ANY_REGION, RegionRules
from tenancy.accounts.rows import to_region_rules
from tenancy.db import Database, create_engine, is_sqlite, parse_database_url
from tenancy.interfaces import AccountStatus
from tenancy.prices.store import find_prices
from tenancy.tables import accounts


@dataclass(frozen=True, slots=True)
class DatabaseProbe:
    """What was found. Units: seconds."""

    took_s: float
    """One query, once connected."""
    skew_s: float
    """How far its clock is ahead of ours."""


async def probe_database(database_url: str, unix_s: Callable[[], float]) -> DatabaseProbe | None:
    """What a server is like; None for a file of this machine.

    Raises: `SettingsError` (URL), `StoreUnavailable`.
    """
    url = parse_database_url(database_url)
    if is_sqlite(url):
        return None
    database = Database(create_engine(url))
    try:
        async with database.read() as connection:
            await connection.execute(select(1))
            began_s = time.monotonic()
            theirs = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
            took_s = time.monotonic() - began_s
    finally:
        await database.close()
    return DatabaseProbe(took_s, theirs.timestamp() + took_s / 2 - unix_s())


async def read_prices(database_url: str) -> list[Price]:
    """The price list. Raises: `SettingsError` (URL), `StoreUnavailable`."""
    database = Database(create_engine(parse_database_url(database_url)))
    try:
        async with database.read() as connection:
            return await find_prices(connection)
    finally:
        await database.close()


async def read_region_rules(database_url: str) -> list[tuple[AccountId, str, RegionRules]]:
    """Id, name and rules of every active account that has rules on regions, in order of id.

    Raises: `SettingsError` (URL), `StoreUnavailable`.
    """
    database = Database(create_engine(parse_database_url(database_url)))
    query = (
        select(accounts)
        .where(accounts.c.status == AccountStatus.ACTIVE, accounts.c.purged_unix_us.is_(None))
        .order_by(accounts.c.account_id)
    )
    try:
        async with database.read() as connection:
            rows = (await connection.execute(query)).all()
    finally:
        await database.close()
    found = [(AccountId(row.account_id), row.name, to_region_rules(row)) for row in rows]
    return [each for each in found if each[2] != ANY_REGION]
