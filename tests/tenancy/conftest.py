"""Fixtures: a clock, a key ring, and `tenancy` on both back ends (SQLite, PostgreSQL).

`database_url` is a fresh database with the current schema, on each kind in turn; `tenancy` stands
on it. On PostgreSQL one database serves the run, emptied before each test.
"""

import asyncio
import secrets
import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Final

import pytest

from migrations.upgrade import upgrade_database
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring import KeyRing, create_key_ring
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock
from tests.tenancy.postgres_server import (
    NOT_RUN,
    create_database,
    deselect_without_postgres,
    execute,
    is_postgres_expected,
    postgres_server,
)

__all__ = ["postgres_server"]

EMPTY_TABLES: Final = (
    "TRUNCATE accounts, api_tokens, operators, quotas, data_keys, members, audit_log, batches, "
    "batch_items, payload_logs, finetunes, finetune_uploads, finetune_pieces; "
    "TRUNCATE usage_ledger, usage_pending, usage_hourly, usage_daily, budget_slices; "
    "TRUNCATE placement_rules, node_drains; "
    "UPDATE audit_chain SET sequence = 0, hash = decode(repeat('00', 32), 'hex'); "
    "DELETE FROM prices WHERE version > 1"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test once per back end that its fixtures can stand on."""
    databases = ["sqlite", "postgres"] if is_postgres_expected() else ["sqlite"]
    if "database_url" in metafunc.fixturenames:
        metafunc.parametrize("backend", databases)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what can run here."""
    deselect_without_postgres(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly what could not run."""
    if not is_postgres_expected():
        terminalreporter.write_line(NOT_RUN, red=True, bold=True)


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock(1_700_000_000.0)


@pytest.fixture(scope="session")
def key_ring() -> KeyRing:
    """Keys of one version each."""
    return create_key_ring(secrets.token_bytes)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the current schema, to be copied."""
    path = tmp_path_factory.mktemp("template") / "tenancy.db"
    upgrade_database(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Generator[str]:
    """A database with the current schema, for this run."""
    with create_database(postgres_server) as url:
        upgrade_database(url)
        yield url


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the current schema and no rows."""
    if backend == "sqlite":
        path = tmp_path / "tenancy.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite+aiosqlite:///{path}"
    url: str = request.getfixturevalue("postgres_database")
    asyncio.run(execute(url, EMPTY_TABLES))
    return url


@pytest.fixture
async def tenancy(
    database_url: str, key_ring: KeyRing, clock: ManualClock
) -> AsyncGenerator[ActingTenancy]:
    """Tenancy without content."""
    opened = create_tenancy(database_url, key_ring, clock, secrets.token_bytes)
    yield ActingTenancy(opened)
    await opened.close()
