"""A real gateway in front of a node that always says the same, for clients of every make."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.gateway.conftest import database_template, node
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import ScriptedNode
from tests.integration.clients.talking_node import TalkingNode

__all__ = ["database_template", "gateway", "node", "talking"]


@pytest.fixture
def talking(node: ScriptedNode) -> TalkingNode:
    """The script that `node` plays."""
    script = TalkingNode()
    script.take_over(node)
    return script


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode, talking: TalkingNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway in front of `node`."""
    async with run_gateway(tmp_path, database_template, [node]) as running:
        yield running
