"""`hearth doctor` names models that engines of others compute, and what is wrong with those."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cli.doctor.finding import Findings, Level
from cli.doctor.fleet_checks import check_nodes
from contracts.settings import decode_settings
from gateway.settings import PREFIX, GatewaySettings
from tests.fixtures.engine_process import MODEL, EngineProcess, run_engine
from tests.fixtures.fleet_node import GATEWAY, FleetNode
from tests.fixtures.node_process import fetch_status, wait_until
from tests.gpu_pool.server.upstream.conftest import start_node


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[EngineProcess, FleetNode]]:
    with run_engine("vllm") as engine, ExitStack() as stack:
        node = start_node(tmp_path, "node-1", engine.write_upstream())
        stack.callback(node.reap)
        yield engine, node


async def examine(node: FleetNode) -> list[tuple[Level, str]]:
    """What is found of the node's model."""
    entry = {"node_id": node.node_id, "region": "weur", "url": node.url}
    table: dict[str, Any] = {
        "gateway_id": GATEWAY,
        "nodes": [entry | {"key_file": str(node.folder / "gateway.key")}],
    }
    findings = Findings()
    offered = await check_nodes(decode_settings(GatewaySettings, table, {}, PREFIX), findings)
    assert offered == {MODEL}
    return [(one.level, one.what) for one in findings.all if MODEL in one.what]


async def test_each_state_of_an_engine_of_others_is_told(
    pair: tuple[EngineProcess, FleetNode],
) -> None:
    engine, node = pair
    ready = node.url.replace("ws", "http", 1) + "/health/ready"
    ((level, message),) = await examine(node)
    assert (level, "(vllm)" in message) == (Level.OK, True)
    engine.reap()
    await wait_until(lambda: fetch_status(ready) == 503)
    ((level, message),) = await examine(node)
    assert (level, "no answer from the engine" in message) == (Level.WARNING, True)
    engine.arguments = ("--model", "another")
    engine.start()
    await wait_until(lambda: "has no model" in (node.folder / "node.log").read_text())
    ((level, message),) = await examine(node)
    assert (level, "`[[upstreams]]` describes" in message) == (Level.PROBLEM, True)
