"""Nodes in front of engines of others, as processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from contracts.ids import ModelName, RegionId
from tests.fixtures.engine_process import MODEL, EngineProcess, run_engine
from tests.fixtures.fleet_node import GATEWAY, FleetNode, create_fleet_node
from tests.fixtures.gateway_client import NodeAddress
from tests.fixtures.node_process import wait_ready


def start_node(folder: Path, name: str, upstream: str, *, is_awaited: bool = True) -> FleetNode:
    """`hearth node` with that upstream."""
    node = create_fleet_node(folder, name, ("cli", "node"), upstream)
    node.start()
    if is_awaited:
        assert node.process is not None
        wait_ready(node.process, address_of(node).url, node.folder / "node.log")
    return node


def address_of(node: FleetNode) -> NodeAddress:
    """How a gateway's end finds it."""
    url = node.url.replace("ws", "http", 1)
    return NodeAddress(url, GATEWAY, node.pair_key, ModelName(MODEL), RegionId("weur"))


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EngineProcess, NodeAddress]]:
    """An engine and a node in front of it; a test leaves both as they were."""
    features: dict[str, Any] = {"features": ["function_calling", "reasoning"]}
    with run_engine(request.param) as engine, ExitStack() as stack:
        upstream = engine.write_upstream(silence_s=2.0, **features)
        node = start_node(tmp_path_factory.mktemp("node"), "node-1", upstream)
        stack.callback(node.reap)
        yield engine, address_of(node)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., tuple[EngineProcess, FleetNode]]]:
    """Starts an engine with arguments of its own and a node in front of it."""
    with ExitStack() as stack:

        def start(
            kind: str, *arguments: str, is_awaited: bool = True, **options: Any
        ) -> tuple[EngineProcess, FleetNode]:
            engine = stack.enter_context(run_engine(kind, *arguments))
            upstream = engine.write_upstream(**options)
            name = f"node-{engine.port}"
            node = start_node(tmp_path, name, upstream, is_awaited=is_awaited)
            stack.callback(node.reap)
            return engine, node

        yield start
