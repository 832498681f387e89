"""Pages of usage, and a month's retention, beside a ledger of millions of rows.

    python -m benchmarks.tenancy.bench_usage                     # SQLite, a million rows
    python -m benchmarks.tenancy.bench_usage --rows 10000000 \\
        --server postgresql://root@127.0.0.1/postgres

Rows are made inside the database, over 60 days, 100 accounts, two tokens and two models each; what
is measured goes through tenancy's own stores. Rows of figures go to `results/tenancy_usage.csv`.
"""

import argparse
import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from itertools import count
from pathlib import Path
from typing import Any, Final

import asyncpg
from sqlalchemy import text

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.budgets import first_day_of_month, to_month
from contracts.ids import AccountId, ApiTokenId, GatewayId, ModelName, create_request_id
from contracts.pricing import TokenCounts
from contracts.usage import MS_PER_DAY, Outcome, Step, UsageCursor, UsageRecord
from migrations.upgrade import upgrade_database
from tenancy.actors import Actor, ActorKind
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.directory import SqlTenancy, create_tenancy
from tenancy.encryption.key_ring import create_key_ring

FIRST_DAY: Final = first_day_of_month(to_month(20_400))
NUM_DAYS: Final = 60
ACCOUNT: Final = AccountId(f"{7:032x}")
NUM_SAMPLES: Final = 30
BATCH: Final = 500
PAUSE_S: Final = 0.1
"""Between batches that are added while a month leaves."""
CHUNK: Final = 500_000

_INSERT_LEDGER = """
INSERT INTO usage_ledger (day, request_id, account_id, api_token_id, model, gateway_id,
    finished_unix_ms, outcome, num_uncached, num_cached, num_output, num_reasoning, price_version,
    cost_nano, num_microneurons)
"""
POSTGRESQL_LEDGER: Final = (
    _INSERT_LEDGER
    + """
SELECT ms / 86400000, substr(id, 1, 8) || '-' || substr(id, 9, 4) || '-7000-8000-'
    || lpad(to_hex(i), 12, '0'), lpad(to_hex(i % 100), 32, '0'), lpad(to_hex(i % 200), 32, '0'),
    '@bench/model-' || (i / 100 % 2), 'gateway-1', ms + 900, 'complete', 100, 20, 50, 0, 1, 2000, 7
FROM (SELECT i, ms, lpad(to_hex(ms), 12, '0') AS id FROM (
    SELECT i, :start + i * :span / :total AS ms
    FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS i) AS times) AS ids
"""
)
SQLITE_LEDGER: Final = (
    _INSERT_LEDGER
    + """
WITH RECURSIVE numbers(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM numbers WHERE i < :last)
SELECT ms / 86400000, substr(id, 1, 8) || '-' || substr(id, 9, 4) || '-7000-8000-'
    || printf('%012x', i), printf('%032x', i % 100), printf('%032x', i % 200),
    '@bench/model-' || (i / 100 % 2), 'gateway-1', ms + 900, 'complete', 100, 20, 50, 0, 1, 2000, 7
FROM (SELECT i, ms, printf('%012x', ms) AS id FROM (
    SELECT i, :start + i * :span / :total AS ms FROM numbers))
"""
)
_SUMS = """COUNT(*), SUM(num_uncached), SUM(num_cached), SUM(num_output), SUM(num_reasoning),
    SUM(cost_nano), SUM(num_microneurons) FROM usage_ledger"""
HOURLY: Final = (
    "INSERT INTO usage_hourly SELECT account_id, (finished_unix_ms - 900) / 3600000, model, "
    f"api_token_id, {_SUMS} GROUP BY 1, 2, 3, 4"
)
DAILY: Final = (
    "INSERT INTO usage_daily SELECT account_id, day, model, "
    f"api_token_id, {_SUMS} GROUP BY 1, 2, 3, 4"
)


async def fill(url: str, num_rows: int) -> None:
    """Ledger and sums, as if so many requests had been served evenly over the days."""
    engine = create_engine(parse_database_url(url), statement_timeout_s=None)
    database = Database(engine)
    ledger = POSTGRESQL_LEDGER if database.is_postgresql else SQLITE_LEDGER
    if database.is_postgresql:
        for month in range(to_month(FIRST_DAY), to_month(FIRST_DAY + NUM_DAYS) + 1):
            async with database.write() as connection:
                query = text("SELECT hearth_ensure_usage_partition(:day)")
                await connection.execute(query, {"day": first_day_of_month(month)})
    for first in range(0, num_rows, CHUNK):
        values = {
            "first": first,
            "last": min(first + CHUNK, num_rows) - 1,
            "start": FIRST_DAY * MS_PER_DAY,
            "span": NUM_DAYS * MS_PER_DAY,
            "total": num_rows,
        }
        async with database.write() as connection:
            await connection.execute(text(ledger), values)
    for statement in (HOURLY, DAILY):
        async with database.write() as connection:
            await connection.execute(text(statement))
    async with database.write() as connection:
        await connection.execute(text("ANALYZE"))
    await database.close()


async def time_each(work: Callable[[], Awaitable[Any]], number: int = NUM_SAMPLES) -> list[float]:
    """Milliseconds of each call."""
    samples: list[float] = []
    for _ in range(number):
        began_s = time.perf_counter()
        await work()
        samples.append(1000 * (time.perf_counter() - began_s))
    return samples


async def measure(tenancy: SqlTenancy, provider: str, num_rows: int) -> list[Figure]:
    """Pages at the beginning and far behind it, appends, and the end of a month."""
    last_day = FIRST_DAY + NUM_DAYS
    far = UsageCursor((last_day - 2) * 24, ModelName("@bench/model-0"), ApiTokenId(f"{7:032x}"))
    day = FIRST_DAY + NUM_DAYS // 2
    records = await tenancy.list_usage_records(ACCOUNT, day, limit=1000)
    works: dict[str, Callable[[], Awaitable[Any]]] = {
        "page of days": lambda: tenancy.list_usage(ACCOUNT, Step.DAY, 0, 2**31 - 1, limit=100),
        "page of hours": lambda: tenancy.list_usage(ACCOUNT, Step.HOUR, 0, 2**31 - 1, limit=100),
        "page of hours, far behind": lambda: tenancy.list_usage(
            ACCOUNT, Step.HOUR, 0, 2**31 - 1, limit=100, after=far
        ),
        "page of records": lambda: tenancy.list_usage_records(
            ACCOUNT, day, limit=100, after=records[-1].request_id
        ),
    }
    figures = [
        summarise("usage", provider, name, "ms", num_rows, await time_each(work))
        for name, work in works.items()
    ]
    numbers = count()

    async def append() -> None:
        await tenancy.append_usage(create_batch(last_day, next(numbers)), "bench")

    per_row = [1000 * sample / BATCH for sample in await time_each(append, 10)]
    figures.append(summarise("usage", provider, "append", "us/row", num_rows, per_row))
    kept = first_day_of_month(to_month(FIRST_DAY) + 1)
    operator = tenancy.act_as(Actor(ActorKind.COMMAND_LINE, "bench"))
    dropping = asyncio.create_task(time_each(lambda: operator.drop_usage_before(kept), 1))
    beside: list[float] = []
    while not dropping.done():
        beside += await time_each(append, 1)
        await asyncio.sleep(PAUSE_S)
    figures += [
        summarise("usage", provider, "append while a month leaves", "ms", num_rows, beside),
        summarise("usage", provider, "slowest of these", "ms", num_rows, [max(beside)]),
        summarise("usage", provider, "a month's retention", "ms", num_rows, await dropping),
    ]
    assert await tenancy.list_usage_records(ACCOUNT, FIRST_DAY) == []
    return figures


def create_batch(day: int, batch: int) -> list[UsageRecord]:
    """What gateways would add next, after `batch` others."""
    return [
        UsageRecord(
            create_request_id(day * MS_PER_DAY - 1000, batch * BATCH + number),
            AccountId(f"{number % 100:032x}"),
            ApiTokenId(f"{number % 200:032x}"),
            ModelName("@bench/model-0"),
            None,
            None,
            GatewayId("gateway-1"),
            day * MS_PER_DAY,
            Outcome.COMPLETE,
            TokenCounts(100, 20, 50),
            1,
            2000,
            7,
        )
        for number in range(BATCH)
    ]


@contextlib.contextmanager
def create_database(server: str | None) -> Generator[str]:
    """A database of the run's own, removed at its end."""
    if server is None:
        with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
            yield f"sqlite+aiosqlite:///{Path(folder) / 'hearth.db'}"
        return
    name = f"hearth_bench_{secrets.token_hex(4)}"

    async def run(statement: str) -> None:
        connection: Any = await asyncpg.connect(server)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(run(f"CREATE DATABASE {name}"))
    try:
        yield f"{server.rpartition('/')[0]}/{name}"
    finally:
        asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))


async def run(url: str, provider: str, num_rows: int) -> list[Figure]:
    """Fills and measures."""
    began_s = time.perf_counter()
    await fill(url, num_rows)
    filled = summarise("usage", provider, "fill", "s", num_rows, [time.perf_counter() - began_s])
    tenancy = create_tenancy(
        url, create_key_ring(secrets.token_bytes), time.time, secrets.token_bytes
    )
    try:
        return [filled, *await measure(tenancy, provider, num_rows)]
    finally:
        await tenancy.close()


def main() -> None:
    """One database, one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--server", help="URL of a PostgreSQL; without it SQLite")
    arguments = parser.parse_args()
    provider = "SQLite" if arguments.server is None else "PostgreSQL"
    with create_database(arguments.server) as url:
        upgrade_database(url)
        figures = asyncio.run(run(url, provider, arguments.rows))
    circumstances = describe_circumstances(["sqlalchemy", "aiosqlite", "asyncpg"])
    append_figures("tenancy_usage.csv", figures, circumstances)
    print_figures(figures)


if __name__ == "__main__":
    main()
