"""Requests with adapters through a whole gateway: where they go, and go when they must go again."""

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.adapters import MAX_ASKED_BYTES, AdapterRef
from contracts.errors import PoolSaturated
from contracts.inference import Accepted, Delta, GenerateRequest
from gateway.adapter_reading import AdapterReader
from gateway.continuation import Forwarded
from tests.gateway.file_reader import FileReader, make_ref
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream, run_node

CONTENT = random.Random(23).randbytes(2 * 1024 * 1024 + 3)
REF = make_ref(CONTENT)
WHOLE: dict[str, Any] = {"prompt": "Hi"}
STREAM = WHOLE | {"stream": True}


def give_adapters(
    running: RunningGateway, reader: AdapterReader, ref: AdapterRef | None = REF
) -> None:
    """From now on every request is one with `ref`, and `reader` has its file."""
    forwarder = running.gateway._pool.forwarding.forwarder
    forwarder._attempts._opener._parts.links._reader = reader
    forward = type(forwarder).forward

    async def forward_adapted(context: Any, request: Any, *more: Any) -> Forwarded:
        if isinstance(request, GenerateRequest):
            request = msgspec.structs.replace(request, adapter=ref)
        return await forward(forwarder, context, request, *more)

    forwarder.forward = forward_adapted  # type: ignore[method-assign]


async def fetch_and_answer(stream: ScriptedStream) -> None:
    """A node that lacks the file."""
    ref = stream.request.adapter
    assert ref is not None
    read = b""
    for first in range(0, ref.num_bytes, MAX_ASKED_BYTES):
        read += await stream.read_adapter(first, min(MAX_ASKED_BYTES, ref.num_bytes - first))
    assert read == CONTENT
    await stream.answer("Hel", "lo")


@dataclass
class Fleet:
    """A gateway before three nodes, of which the last takes no adapters."""

    gateway: RunningGateway
    nodes: list[ScriptedNode]
    reader: FileReader


@pytest.fixture
async def fleet(tmp_path: Path, database_template: Path) -> AsyncGenerator[Fleet]:
    async with run_node("node-1") as one, run_node("node-2") as two, run_node("node-3") as three:
        for node in (one, two):
            node.max_adapter_rank = 16
            node.script = fetch_and_answer
        nodes = [one, two, three]
        async with run_gateway(tmp_path, database_template, nodes) as gateway:
            roster = gateway.gateway._pool.fleet.roster
            await wait_until(lambda: all(node.num_reports for node in roster.snapshots))
            (tmp_path / "files").mkdir()
            reader = FileReader(tmp_path / "files")
            reader.put(CONTENT)
            give_adapters(gateway, reader)
            yield Fleet(gateway, nodes, reader)


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_a_request_brings_its_adapter_to_a_node_that_takes_it(
    fleet: Fleet, body: dict[str, Any]
) -> None:
    replies = [await fleet.gateway.run(body) for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 6
    assert fleet.nodes[2].streams == []
    assert fleet.reader.reads
    give_adapters(fleet.gateway, fleet.reader, None)  # the control: without, it goes there too
    await fleet.nodes[0].stop()
    await fleet.nodes[1].stop()
    assert (await fleet.gateway.run(WHOLE)).status == 200
    assert len(fleet.nodes[2].streams) == 1
    await fleet.nodes[0].start()
    await fleet.nodes[1].start()


async def test_what_a_node_refuses_goes_to_another_that_takes_it(fleet: Fleet) -> None:
    async def refuse(stream: ScriptedStream) -> None:
        await stream.fail(PoolSaturated("This node has no room for the adapter's file."))

    for node in fleet.nodes[:2]:
        node.script = refuse
    asked = asyncio.create_task(fleet.gateway.run(WHOLE | {"options": {"rejectIfBusy": True}}))
    reply = await asked
    assert reply.status == 429
    assert [len(node.streams) for node in fleet.nodes] == [1, 1, 0]
    fleet.nodes[1].script = fetch_and_answer
    assert (await fleet.gateway.run(WHOLE)).status == 200
    assert fleet.nodes[2].streams == []


async def test_an_answer_goes_on_with_its_adapter_at_a_node_that_takes_it(fleet: Fleet) -> None:
    async def break_off(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hel", (1,)))
        await asyncio.sleep(0.1)
        fleet.nodes[0].drop_connections()

    fleet.nodes[0].script = break_off
    fleet.nodes[1].num_running = 5
    await fleet.nodes[1].send_report()
    await asyncio.sleep(0.1)
    reply = await fleet.gateway.run(STREAM)
    assert reply.status == 200
    first, second = fleet.nodes[0].streams[0].request, fleet.nodes[1].streams[0].request
    assert first.adapter == second.adapter == REF
    assert second.resumption is not None
    assert fleet.nodes[2].streams == []


async def test_a_model_whose_nodes_take_no_such_adapter_is_answered_with_405(fleet: Fleet) -> None:
    give_adapters(fleet.gateway, fleet.reader, msgspec.structs.replace(REF, rank=17))
    reply = await fleet.gateway.run(WHOLE)
    assert (reply.status, reply.code) == (405, 5005)
    assert all(not node.streams for node in fleet.nodes)


async def test_a_file_that_is_gone_ends_its_request_and_blames_no_node(fleet: Fleet) -> None:
    missing = make_ref(b"another file")
    give_adapters(fleet.gateway, fleet.reader, missing)
    for _ in range(10):
        assert (await fleet.gateway.run(WHOLE)).status == 404
    assert not fleet.gateway.gateway._pool.fleet.list_troubled()


@pytest.mark.parametrize("is_gateways", [True, False], ids=["ours", "control"])
async def test_a_store_that_is_away_closes_no_node_to_others(
    fleet: Fleet, *, is_gateways: bool
) -> None:
    class Away:
        async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
            raise KeyError("a store that fails in a way of its own")

    async def misbehave(stream: ScriptedStream) -> None:
        await stream.read_adapter(REF.num_bytes, 1)

    give_adapters(fleet.gateway, Away() if is_gateways else fleet.reader)
    for node in fleet.nodes[:2]:
        node.script = fetch_and_answer if is_gateways else misbehave
    for _ in range(10):
        assert (await fleet.gateway.run(WHOLE)).status >= 500
    assert bool(fleet.gateway.gateway._pool.fleet.list_troubled()) is not is_gateways


async def test_a_client_that_leaves_ends_the_reading(fleet: Fleet) -> None:
    fleet.reader.held = asyncio.Event()
    asked = asyncio.create_task(fleet.gateway.run(STREAM))
    await wait_until(lambda: fleet.reader.num_reading == 1)
    asked.cancel()
    await wait_until(lambda: fleet.reader.num_reading == 0)
    assert fleet.reader.num_cancelled == 1
