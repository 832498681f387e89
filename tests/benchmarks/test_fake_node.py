"""The fake node keeps the same wire contract as the real one, and imports only contracts."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.ids import GatewayId, ModelName
from tests.architecture.source_tree import modules_of
from tests.fixtures.free_port import find_port
from tests.fixtures.gateway_client import NodeAddress
from tests.fixtures.node_process import ROOT, wait_ready, write_key
from tests.gpu_pool.server.wire_contract import WireContract


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAddress]:
    directory: Path = tmp_path_factory.mktemp("fake")
    key, port = write_key(directory / "gateway.key"), find_port()
    options = {
        "--port": str(port),
        "--key-file": str(directory / "gateway.key"),
        "--tick-s": "0.001",
        "--num-events": "3000",
    }
    command = [sys.executable, "-m", "benchmarks.fake_node"]
    for option in options.items():
        command += option
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(process, url, directory / "log")
        yield NodeAddress(url, GatewayId("gateway-1"), key, ModelName("@hearth/fake"))
    finally:
        process.kill()
        process.wait(10)


class TestFakeNode(WireContract):
    """`python -m benchmarks.fake_node`."""


def test_the_fake_node_knows_contracts_only() -> None:
    modules = [m for m in modules_of("benchmarks") if m.path.startswith("benchmarks/fake_node/")]
    imported = {i.top for module in modules for i in module.imports}
    assert len(modules) > 3
    assert not imported & {"gpu_pool", "gateway", "tenancy", "hot_standby", "cli"}
