"""Fixtures: one scripted node, and a gateway in front of it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from migrations.upgrade import upgrade_database
from tests.gateway.cloudflare_client import ALL
from tests.gateway.running_gateway import RunningGateway, Tenant, run_gateway
from tests.gateway.scripted_node import ScriptedNode, run_node


@pytest.fixture(scope="session")
def database_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with the current schema, to be copied."""
    path = tmp_path_factory.mktemp("database") / "template.db"
    upgrade_database(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture
async def node() -> AsyncGenerator[ScriptedNode]:
    """A healthy node."""
    async with run_node() as running:
        yield running


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway in front of `node`."""
    async with run_gateway(tmp_path, database_template, [node]) as running:
        yield running


@pytest.fixture
async def admin(gateway: RunningGateway) -> Tenant:
    """A token that holds every right on its account."""
    return await gateway.add_tenant(permissions=ALL)
