"""Fixtures: `empty_database`, the URL of a database without any table, on each kind in turn."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.tenancy.postgres_server import (
    NOT_RUN,
    create_database,
    deselect_without_postgres,
    is_postgres_expected,
    postgres_server,
)

__all__ = ["postgres_server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test once per kind of database."""
    if "empty_database" in metafunc.fixturenames:
        kinds = ["sqlite", "postgres"] if is_postgres_expected() else ["sqlite"]
        metafunc.parametrize("kind", kinds)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what can run here."""
    deselect_without_postgres(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly what could not run."""
    if not is_postgres_expected():
        terminalreporter.write_line(NOT_RUN, red=True, bold=True)


@pytest.fixture
def empty_database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """A database of the test's own. The SQLite file and its folder do not exist yet."""
    if kind == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path}/state/tenancy.db"
        return
    with create_database(request.getfixturevalue("postgres_server")) as url:
        yield url
