"""A real PostgreSQL for tests: the one that runs here, or one started from installed binaries.

`HEARTH_TEST_POSTGRES` may hold the URL of a server (its user must be able to create databases);
else port 5432 of this machine is tried. Every user gets databases of its own, dropped at the end.
"""

import asyncio
import functools
import getpass
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from tests.fixtures.free_port import find_port
from tests.fixtures.services import are_services_required

URL_VARIABLE: Final = "HEARTH_TEST_POSTGRES"
START_TIMEOUT_S: Final = 60.0
NOT_RUN: Final = (
    "NOT RUN: everything on PostgreSQL. No server answers on 127.0.0.1:5432, "
    f"{URL_VARIABLE} is not set, and initdb and postgres are not installed."
)


def is_postgres_expected() -> bool:
    """True when a server can be had, or when tests may not go without one."""
    return are_services_required() or _find_running() is not None or can_start_server()


def can_start_server() -> bool:
    """True when the binaries of a server are installed."""
    return _find_binary("initdb") is not None


def deselect_without_postgres(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out what needs a server when none can be had; the summary says so."""
    if is_postgres_expected():
        return
    fixtures = {"postgres_server", "postgres_database"}
    needs = [item for item in items if fixtures & set(getattr(item, "fixturenames", ()))]
    if needs:
        config.hook.pytest_deselected(items=needs)
        items[:] = [item for item in items if item not in needs]


@pytest.fixture(scope="session")
def postgres_server() -> Generator[str]:
    """URL of a server's maintenance database."""
    running = _find_running()
    if running is not None:
        yield running
        return
    if not can_start_server():
        pytest.fail(NOT_RUN)
    with start_server() as started:
        yield started


@contextmanager
def create_database(server_url: str) -> Generator[str]:
    """URL of a new, empty database, dropped with all connections to it at the end."""
    name = f"hearth_test_{secrets.token_hex(6)}"
    asyncio.run(execute(server_url, f'CREATE DATABASE "{name}"'))
    try:
        yield f"{server_url.rpartition('/')[0]}/{name}"
    finally:
        asyncio.run(execute(server_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def execute(url: str, statement: str) -> None:
    """Runs one statement on a connection of its own."""
    connection: Any = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@functools.cache
def _find_running() -> str | None:
    """URL of a server that lets us in."""
    url = os.environ.get(URL_VARIABLE)
    if url is not None:
        return url
    for database in ("postgres", "test"):
        url = f"postgresql://{getpass.getuser()}@127.0.0.1:5432/{database}"
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            asyncio.run(execute(url, "SELECT 1"))
            return url
    return None


def _find_binary(name: str) -> str | None:
    """Path of a server program; Debian keeps them off the PATH."""
    found = shutil.which(name)
    if found is not None:
        return found
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(candidates[-1]) if candidates else None


@contextmanager
def start_server() -> Generator[str]:
    """URL of a server of our own, which keeps its files in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="hearth-postgres-") as folder:
        account: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            account = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(folder, "postgres", "postgres")
        data = Path(folder) / "data"
        subprocess.run(
            [str(_find_binary("initdb")), "-D", data, "-U", "hearth", "-A", "trust", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd=folder, **account,
        )  # fmt: skip
        port = find_port()
        options = (f"port={port}", "listen_addresses=127.0.0.1", "fsync=off", "max_connections=40")
        settings = [part for option in options for part in ("-c", option)]
        server = subprocess.Popen(
            [str(_find_binary("postgres")), "-D", data, "-k", folder, *settings],
            stderr=subprocess.DEVNULL, cwd=folder, **account,
        )  # fmt: skip
        try:
            url = f"postgresql://hearth@127.0.0.1:{port}/postgres"
            _wait_until_ready(url)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=30)


def _wait_until_ready(url: str) -> None:
    """Returns once the server answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            asyncio.run(execute(url, "SELECT 1"))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
