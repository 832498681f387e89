"""The wire contract, kept by a real node process with a real engine core and random weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.gateway_client import NodeAddress
from tests.fixtures.node_process import run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gpu_pool.server.wire_contract import WireContract


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAddress]:
    directory: Path = tmp_path_factory.mktemp("node")
    checkpoint = write_random_checkpoint(directory / "model")
    with run_node_process(directory, checkpoint) as (_, address):
        yield address


class TestRealNode(WireContract):
    """`hearth node`."""
