"""Hundreds of requests at once that end early, at an engine of others: nothing of them stays."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contracts.fleet import ModelLoad
from contracts.inference import Accepted, Finished
from contracts.wire import Abort
from tests.fixtures.engine_process import EngineProcess, run_engine
from tests.fixtures.fleet_node import FleetNode
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code
from tests.fixtures.node_process import wait_until
from tests.gpu_pool.server.upstream.conftest import address_of, start_node

NUM_REQUESTS = 200
LONG = {"max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, FleetNode]]:
    with run_engine("vllm", "--token-s", "0.05") as engine, ExitStack() as stack:
        upstream = engine.write_upstream(silence_s=5.0, max_running=NUM_REQUESTS)
        node = start_node(tmp_path_factory.mktemp("node"), "node-1", upstream)
        stack.callback(node.reap)
        yield engine, node


def count_descriptors(node: FleetNode) -> int:
    """Files and sockets that the node's process holds."""
    assert node.process is not None
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


async def read_load(client: GatewayClient) -> ModelLoad:
    """What the node says next."""
    while not client.reports.empty():
        client.reports.get_nowait()
    return (await asyncio.wait_for(client.reports.get(), 10)).loads[0]


@pytest.mark.parametrize("mode", ["", "drip", "silent", "after the end"])
@pytest.mark.parametrize("leaves", ["with a word", "without"])
async def test_of_a_crowd_that_leaves_nothing_stays(
    pair: tuple[EngineProcess, FleetNode], mode: str, leaves: str
) -> None:
    engine, node = pair
    address = address_of(node)
    async with GatewayClient(address) as watcher:
        assert isinstance((await watcher.generate(ask(address.model)))[-1], Finished)
        num_before = count_descriptors(node)
        engine.behave(mode)
        async with GatewayClient(address) as client:
            streams = [await client.open(ask(address.model, **LONG)) for _ in range(NUM_REQUESTS)]
            if mode == "silent":
                await wait_until(lambda: engine.see()["num_running"] == NUM_REQUESTS)
            else:
                for stream in streams:
                    assert isinstance(await stream.next(), Accepted)
            assert count_descriptors(node) > num_before + NUM_REQUESTS // 2  # the control
            if leaves == "with a word":
                for stream in streams:
                    await client.send(stream, Abort())
                for stream in streams:
                    assert isinstance((await stream.read_all())[-1], Finished)
        await wait_until(lambda: engine.see()["num_running"] == 0, timeout_s=20)
        engine.behave("")
        assert isinstance((await watcher.generate(ask(address.model)))[-1], Finished)
        await wait_until(lambda: count_descriptors(node) <= num_before + 2, timeout_s=20)
        load = await read_load(watcher)
        assert (load.num_running, load.num_waiting, load.num_queued_tokens) == (0, 0, 0)


async def test_an_engine_that_drips_is_read_until_the_deadline_and_no_longer(
    pair: tuple[EngineProcess, FleetNode],
) -> None:
    engine, node = pair
    address = address_of(node)
    engine.behave("drip")
    deadline_unix_ms = int(time.time() * 1000) + 2000
    async with GatewayClient(address) as client:
        many = [
            await client.open(ask(address.model), deadline_unix_ms=deadline_unix_ms)
            for _ in range(NUM_REQUESTS)
        ]
        for stream in many:
            assert failure_code(await stream.read_all()) == "deadline_exceeded"
        await wait_until(lambda: engine.see()["num_running"] == 0)
        engine.behave("")
        assert isinstance((await client.generate(ask(address.model)))[-1], Finished)
