"""One running `hearth dev` for all tests of a run that only ask it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.account_client import AccountClient
from tests.integration.running_dev import RunningDev, run_hearth_json, start_dev
from tests.tenancy.postgres_server import deselect_without_postgres, postgres_server

__all__ = ["postgres_server"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out what needs PostgreSQL where none can be had (the suite says so)."""
    deselect_without_postgres(config, items)


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDev]:
    """Shared: a test leaves it as it found it."""
    with start_dev(tmp_path_factory.mktemp("dev") / "state") as running:
        yield running


@pytest.fixture
async def account(dev: RunningDev) -> AsyncIterator[AccountClient]:
    """The account that `hearth dev` has made."""
    access = dev.access
    async with AccountClient(access.base_url, access.account_id, access.api_token) as client:
        yield client


@pytest.fixture
async def other_account(dev: RunningDev) -> AsyncIterator[AccountClient]:
    """A second account, made with the command line while the gateway runs."""
    place = ("--database-url", f"sqlite:///{dev.home.database}", "--key-ring", dev.home.key_ring)
    account = run_hearth_json("accounts", "create", "other", "--json", *place)
    account_id = account["account_id"]
    issued = run_hearth_json("tokens", "create", account_id, "--name", "test", "--json", *place)
    async with AccountClient(dev.access.base_url, account_id, issued["value"]) as client:
        yield client
