"""Migrations on real databases: up, down, several at once, and in step with the tables."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from contracts.errors import StoreUnavailable
from contracts.settings import SettingsError
from migrations.upgrade import (
    SchemaState,
    create_alembic_config,
    read_schema_state,
    run_locked,
    upgrade_database,
    upgrade_database_async,
)
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.tables import metadata

ROOT = Path(__file__).resolve().parents[2]
TABLES = {"audit_chain", "audit_log", "data_keys", "members"} | {
    *("accounts", "api_tokens", "operators", "tenancy_epoch", "alembic_version"),
    *("node_drains", "placement_rules", "quotas", "prices"),
    *("usage_ledger", "usage_pending", "usage_hourly", "usage_daily"),
    *("budget_slices", "batches", "batch_items", "payload_logs"),
    *("finetunes", "finetune_uploads", "finetune_pieces"),
}
URL = "sqlite:///a.db"
UPGRADE = "import sys; from migrations.upgrade import upgrade_database as up; up(sys.argv[1])"
WAIT_AND_UPGRADE = """
import sys
from migrations.upgrade import upgrade_database
print("ready", flush=True)
sys.stdin.readline()
upgrade_database(sys.argv[1])
"""


async def list_tables(url: str) -> set[str]:
    """Names of all tables."""
    database = Database(create_engine(parse_database_url(url)))
    async with database.read() as connection:
        names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    await database.close()
    return set(names)


async def run_alembic(url: str, name: str, revision: str) -> None:
    """One of Alembic's own commands."""

    def run(connection: Connection) -> None:
        config = create_alembic_config()
        config.attributes["connection"] = connection
        getattr(command, name)(config, revision)

    await run_locked(url, run)


async def test_an_empty_database_gets_every_table_and_one_epoch(empty_database: str) -> None:
    assert await read_schema_state(empty_database) is SchemaState.EMPTY
    await upgrade_database_async(empty_database)
    assert await list_tables(empty_database) == TABLES
    assert await read_schema_state(empty_database) is SchemaState.CURRENT
    database = Database(create_engine(parse_database_url(empty_database)))
    async with database.read() as connection:
        rows = (await connection.execute(text("SELECT epoch_id, epoch FROM tenancy_epoch"))).all()
    await database.close()
    assert [tuple(row) for row in rows] == [(1, 1)]


def test_reading_the_state_of_a_missing_file_does_not_create_it(tmp_path: Path) -> None:
    state = asyncio.run(read_schema_state(f"sqlite:///{tmp_path}/a.db"))
    assert state is SchemaState.EMPTY
    assert list(tmp_path.iterdir()) == []


def test_programs_without_an_event_loop_can_upgrade_too(tmp_path: Path) -> None:
    upgrade_database(f"sqlite:///{tmp_path}/a.db")
    upgrade_database(f"sqlite:///{tmp_path}/a.db")
    assert (tmp_path / "a.db").exists()


async def test_every_step_can_be_taken_back_and_again(empty_database: str) -> None:
    await upgrade_database_async(empty_database)
    await run_alembic(empty_database, "downgrade", "base")
    assert await list_tables(empty_database) == {"alembic_version"}
    assert await read_schema_state(empty_database) is SchemaState.EMPTY
    await upgrade_database_async(empty_database)
    assert await list_tables(empty_database) == TABLES


async def test_a_step_back_unbinds_nobody(empty_database: str) -> None:
    await upgrade_database_async(empty_database)
    columns = (
        "account_id, name, status, created_unix_us, cache_salt_generation, master_key_version, "
        "retention, priority, allowed_regions, allowed_jurisdictions"
    )
    rules = {
        "free": ("NULL", "NULL"),
        "weur": ("'[\"weur\"]'", "NULL"),
        "eu": ("NULL", "'[\"eu\"]'"),
    }
    database = Database(create_engine(parse_database_url(empty_database)))
    async with database.write() as connection:
        for name, (regions, laws) in rules.items():
            values = f"'{name}', 'n', 'active', 0, 1, 1, 'standard', 0, {regions}, {laws}"
            await connection.execute(text(f"INSERT INTO accounts ({columns}) VALUES ({values})"))
    await run_alembic(empty_database, "downgrade", "0011")
    async with database.read() as connection:
        query = text("SELECT account_id, CAST(allowed_regions AS TEXT) FROM accounts")
        found = {row[0].strip(): row[1] for row in await connection.execute(query)}
    await database.close()
    assert found == {"free": None, "weur": '["weur"]', "eu": "[]"}


async def test_the_migrated_schema_is_the_one_that_the_code_expects(empty_database: str) -> None:
    await upgrade_database_async(empty_database)

    def compare(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, metadata)

    def add_column(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE accounts ADD COLUMN stray INTEGER"))

    database = Database(create_engine(parse_database_url(empty_database)))
    async with database.read() as connection:
        assert await connection.run_sync(compare) == []
    async with database.write() as connection:
        await connection.run_sync(add_column)
    async with database.read() as connection:  # the control: a stray column is seen
        assert len(await connection.run_sync(compare)) == 1
    await database.close()


async def test_the_migrated_constraints_have_the_names_that_the_code_gives_them(
    empty_database: str,
) -> None:
    """Later migrations name what they alter; Alembic does not compare these."""
    await upgrade_database_async(empty_database)

    def list_names(connection: Connection) -> set[str | None]:
        inspector = inspect(connection)
        names: set[str | None] = set()
        for table in metadata.tables:
            names.add(inspector.get_pk_constraint(table)["name"])
            names |= {found["name"] for found in inspector.get_check_constraints(table)}
            names |= {found["name"] for found in inspector.get_unique_constraints(table)}
            names |= {found["name"] for found in inspector.get_foreign_keys(table)}
        return names

    database = Database(create_engine(parse_database_url(empty_database)))
    async with database.read() as connection:
        found = await connection.run_sync(list_names)
    await database.close()
    given = {
        constraint.name for table in metadata.tables.values() for constraint in table.constraints
    }
    assert found == given


def test_four_processes_that_start_at_once_all_find_an_upgraded_database(
    empty_database: str,
) -> None:
    """They are let go together: without the lock this fails (on SQLite not every time)."""
    command_line = [sys.executable, "-W", "error", "-c", WAIT_AND_UPGRADE, empty_database]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command_line, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    failures = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, failures
    assert asyncio.run(read_schema_state(empty_database)) is SchemaState.CURRENT


async def test_a_failed_step_leaves_nothing_behind(empty_database: str) -> None:
    def fail(connection: Connection) -> None:
        metadata.create_all(connection)
        raise SettingsError("The step fails.")

    with pytest.raises(SettingsError, match="step fails"):
        await run_locked(empty_database, fail)
    assert await list_tables(empty_database) == set()


async def test_the_database_of_a_newer_version_is_left_alone(empty_database: str) -> None:
    await upgrade_database_async(empty_database)
    database = Database(create_engine(parse_database_url(empty_database)))
    async with database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.close()
    assert await read_schema_state(empty_database) is SchemaState.UNKNOWN
    with pytest.raises(StoreUnavailable, match="newer version"):
        await upgrade_database_async(empty_database)


async def test_a_database_that_is_away_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await upgrade_database_async("postgresql://u@127.0.0.1:1/d")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        await upgrade_database_async(f"sqlite:///{tmp_path}/file/a.db")


@pytest.mark.parametrize("arguments", [["upgrade", "head"], ["check"], ["downgrade", "base"]])
def test_developers_can_use_the_alembic_command(tmp_path: Path, arguments: list[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    upgrade_database(url)
    alembic = [sys.executable, "-W", "error", "-m", "alembic", "-x", f"url={url}"]
    subprocess.run([*alembic, *arguments], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_the_scripts_are_found_from_any_folder(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {UPGRADE}", URL],
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    assert (tmp_path / "a.db").exists()
