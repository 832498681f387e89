"""The wire contract, kept by a node whose model an engine of others computes."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fixtures.engine_process import run_engine
from tests.fixtures.gateway_client import NodeAddress
from tests.gpu_pool.server.upstream.conftest import address_of, start_node
from tests.gpu_pool.server.wire_contract import WireContract


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAddress]:
    with run_engine("vllm") as engine, ExitStack() as stack:
        node = start_node(tmp_path_factory.mktemp("node"), "node-1", engine.write_upstream())
        stack.callback(node.reap)
        yield address_of(node)


class TestUpstreamNode(WireContract):
    """`hearth node` in front of a server that speaks as vLLM does."""
