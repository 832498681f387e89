"""Adapters on their way between real processes, one of which is killed in the middle of it."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

import pytest

from contracts.adapters import MAX_ASKED_BYTES, AdapterRef
from contracts.inference import Failed, Finished
from contracts.pair_key import PairKey
from gateway.upstream.node_address import NodeAddress
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.fixtures.node_process import MODEL, ROOT, fetch_status
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.adapter_program import open_adapted, run_fed_links
from tests.gateway.file_reader import FileReader
from tests.gateway.running_gateway import wait_until

CONTENT = random.Random(17).randbytes(6 * 1024 * 1024 + 5)
PROGRAM = ("tests.fixtures.double_node", "--adapter-rank", "16")


@pytest.fixture
def reader(tmp_path: Path) -> FileReader:
    (tmp_path / "files").mkdir()
    return FileReader(tmp_path / "files")


@pytest.fixture
def ref(reader: FileReader) -> AdapterRef:
    return reader.put(CONTENT)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncGenerator[FleetNode]:
    """A node in a process of its own, ready."""
    checkpoint = write_random_checkpoint(tmp_path / "model")
    more = f"""
[[models]]
name = "{MODEL}"
path = "{checkpoint}"
"""
    node = create_fleet_node(tmp_path, "node-1", PROGRAM, more)
    await start(node)
    yield node
    node.reap()


async def start(node: FleetNode) -> None:
    """Returns when the node is ready."""
    node.start()
    url = node.url.replace("ws", "http", 1) + "/health/ready"
    async with asyncio.timeout(60):
        while await asyncio.to_thread(fetch_status, url) != 200:  # noqa: ASYNC110 - a process
            await asyncio.sleep(0.05)


def to_address(node: FleetNode) -> NodeAddress:
    """Where a gateway finds it."""
    return NodeAddress(node.node_id, node.url, PairKey(node.pair_key), None)


def list_files(node: FleetNode) -> list[str]:
    """Files of adapters, whole or not."""
    folder = node.folder / "adapters" / node.node_id
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.suffix for path in paths if len(path.stem) == 64)


@contextmanager
def run_program(
    node: FleetNode, reader: FileReader, ref: AdapterRef
) -> Generator["subprocess.Popen[bytes]"]:
    """A gateway that feeds the node slowly, a window in each fifth of a second."""
    digest, length = ref.weights_sha256.hex(), str(ref.num_bytes)
    arguments = node.url, node.pair_key.hex(), node.node_id, MODEL
    command = [
        *(sys.executable, "-m", "tests.gateway.adapter_program"),
        *(*arguments, str(reader.folder), digest, length, "0.2"),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as program:
        try:
            yield program
        finally:
            program.kill()


async def read_until(program: "subprocess.Popen[bytes]", line: str) -> None:
    """Returns when the program has said so."""
    assert program.stdout is not None
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(program.stdout.readline)).decode().strip() != line:
            assert program.poll() is None, "it ended early"


async def test_a_gateway_killed_in_the_middle_leaves_nothing_where_nobody_else_waits(
    node: FleetNode, reader: FileReader, ref: AdapterRef
) -> None:
    with run_program(node, reader, ref) as program:
        await read_until(program, f"read {2 * MAX_ASKED_BYTES}")
        assert list_files(node) == [".partial"]
    await wait_until(lambda: not list_files(node))
    with run_program(node, reader, ref) as program:  # the control: left alone it comes to its end
        await read_until(program, "finished")
    assert list_files(node) == [".safetensors"]


async def test_another_gateway_goes_on_where_a_killed_one_has_stopped(
    node: FleetNode, reader: FileReader, ref: AdapterRef
) -> None:
    async with run_fed_links(to_address(node), reader) as links:
        with run_program(node, reader, ref) as program:
            await read_until(program, f"read {2 * MAX_ASKED_BYTES}")
            stream = open_adapted(links, node.node_id, MODEL, ref, "b")
            await asyncio.sleep(0.1)
        assert isinstance((await asyncio.wait_for(stream.take_all(), 30))[-1], Finished)
        assert min(first for first, _ in reader.reads) >= 2 * MAX_ASKED_BYTES
        assert list_files(node) == [".safetensors"]


async def test_a_node_killed_in_the_middle_begins_again_in_its_next_life(
    node: FleetNode, reader: FileReader, ref: AdapterRef
) -> None:
    reader.delay_s = 0.2
    async with run_fed_links(to_address(node), reader) as links:
        stream = open_adapted(links, node.node_id, MODEL, ref)
        await wait_until(lambda: len(reader.reads) == 3)
        assert list_files(node) == [".partial"]
        node.signal(SIGKILL)
        end = (await asyncio.wait_for(stream.take_all(), 30))[-1]
        assert isinstance(end, Failed)
        assert end.error.code == "stream_broken"
        await wait_until(lambda: reader.num_reading == 0)
        await start(node)
        assert list_files(node) == []  # what was half done is gone
    reader.reads.clear()
    async with run_fed_links(to_address(node), reader) as links:
        stream = open_adapted(links, node.node_id, MODEL, ref)
        assert isinstance((await asyncio.wait_for(stream.take_all(), 30))[-1], Finished)
    assert reader.reads[0][0] == 0
    node.signal(SIGKILL)  # a whole one outlives even that
    await start(node)
    reader.reads.clear()
    async with run_fed_links(to_address(node), reader) as links:
        stream = open_adapted(links, node.node_id, MODEL, ref, "b")
        assert isinstance((await asyncio.wait_for(stream.take_all(), 30))[-1], Finished)
    assert reader.reads == []
