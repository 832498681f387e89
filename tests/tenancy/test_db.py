"""The database: URLs, what SQLite is told per connection, and how errors leave."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update

from contracts.errors import InvariantBroken, NotFound, StoreUnavailable
from contracts.settings import SettingsError
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.tables import api_tokens, tenancy_epoch


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("sqlite:///a.db", "sqlite+aiosqlite:///a.db"),
        ("sqlite+aiosqlite:////a/b.db", "sqlite+aiosqlite:////a/b.db"),
        ("postgres://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql://u@h:5/d", "postgresql+asyncpg://u@h:5/d"),
        ("postgresql+asyncpg://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql://u@h/d?sslmode=require", "postgresql+asyncpg://u@h/d?ssl=require"),
    ],
)
def test_a_database_url_may_leave_the_driver_out(given: str, parsed: str) -> None:
    assert parse_database_url(given).render_as_string() == parsed


@pytest.mark.parametrize(
    "url", ["", "x", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "postgresql+psycopg2://h/d"]
)
def test_a_url_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        parse_database_url(url)


def test_a_refused_url_does_not_show_its_password() -> None:
    with pytest.raises(SettingsError) as refusal:
        parse_database_url("mysql://user:hunter2@host/database")
    assert "hunter2" not in str(refusal.value)


async def test_sqlite_keeps_commits_through_a_power_cut_and_checks_foreign_keys(
    tmp_path: Path,
) -> None:
    database = Database(create_engine(parse_database_url(f"sqlite:///{tmp_path}/a.db")))
    async with database.read() as connection:
        found = {
            name: (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    await database.close()
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 5000,
    }


async def test_a_failed_transaction_leaves_nothing(database_url: str) -> None:
    database = Database(create_engine(parse_database_url(database_url)))

    async def change(fails: bool) -> None:
        async with database.write() as connection:
            await connection.execute(update(tenancy_epoch).values(epoch=tenancy_epoch.c.epoch + 1))
            if fails:
                raise NotFound("The body gives up.")

    before = await read_epoch_of(database)
    with pytest.raises(NotFound):
        await change(fails=True)
    assert await read_epoch_of(database) == before
    await change(fails=False)  # the control
    assert await read_epoch_of(database) == before + 1
    await database.close()


async def test_a_token_without_an_account_is_refused_by_the_database_too(
    database_url: str,
) -> None:
    row = {
        "api_token_id": "0" * 32,
        "account_id": "f" * 32,
        "name": "n",
        "hint": "h",
        "status": "active",
        "permissions": [],
        "digest": bytes(32),
        "pepper_version": 1,
        "issued_unix_us": 0,
    }
    database = Database(create_engine(parse_database_url(database_url)))
    with pytest.raises(InvariantBroken) as refusal:
        async with database.write() as connection:
            await connection.execute(insert(api_tokens).values(row))
    assert "FOREIGN KEY" in str(refusal.value.__cause__).upper()
    await database.close()


async def test_a_writer_that_waits_too_long_is_told_that_the_store_is_unavailable(
    tmp_path: Path,
) -> None:
    url = parse_database_url(f"sqlite:///{tmp_path}/a.db")
    database = Database(create_engine(url, statement_timeout_s=0.1))
    async with database.read() as connection:
        await connection.execute(select(1))
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        async with database.write():
            pass
    other.execute("ROLLBACK")
    async with database.write():  # the control: with the lock gone it works
        pass
    other.close()
    await database.close()


async def test_many_writers_wait_for_each_other(database_url: str) -> None:
    databases = [Database(create_engine(parse_database_url(database_url))) for _ in range(3)]

    async def bump(database: Database) -> None:
        """Reads, then writes what it has read: loses counts unless writers take turns."""
        async with database.write() as connection:
            query = select(tenancy_epoch.c.epoch).with_for_update()
            epoch = (await connection.execute(query)).scalar_one()
            await connection.execute(update(tenancy_epoch).values(epoch=epoch + 1))

    before = await read_epoch_of(databases[0])
    await asyncio.gather(*(bump(databases[n % 3]) for n in range(30)))
    assert await read_epoch_of(databases[0]) == before + 30
    for database in databases:
        await database.close()


async def read_epoch_of(database: Database) -> int:
    """The epoch, by a query of our own."""
    async with database.read() as connection:
        return (await connection.execute(select(tenancy_epoch.c.epoch))).scalar_one()


async def test_sqlites_writers_of_one_process_take_turns(tmp_path: Path) -> None:
    """By itself SQLite lets whoever asks in the right moment, which is who has just written."""
    database = Database(create_engine(parse_database_url(f"sqlite:///{tmp_path}/a.db")))
    num_written = [0] * 10
    widest = 0

    async def write_often(number: int) -> None:
        nonlocal widest
        for _ in range(15):
            async with database.write() as connection:
                await connection.execute(select(1))
                if min(num_written):  # all have come
                    widest = max(widest, max(num_written) - min(num_written))
            num_written[number] += 1

    await asyncio.gather(*(write_often(number) for number in range(len(num_written))))
    assert widest <= 2, "15 where those who wait ask again at random"
    await database.close()


async def test_a_writer_waits_no_longer_for_its_own_process_than_for_another(
    tmp_path: Path,
) -> None:
    url = parse_database_url(f"sqlite:///{tmp_path}/a.db")
    database = Database(create_engine(url, statement_timeout_s=0.1))
    async with database.write():
        with pytest.raises(StoreUnavailable):
            async with database.write():
                pass
        async with database.read():  # the control: who reads waits for nobody
            pass
    async with database.write():  # and with the turn given on it works
        pass
    await database.close()
