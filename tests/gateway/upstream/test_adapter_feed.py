"""Adapters on their way to a node: whole, beside other streams, and no more than may be asked."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from contracts.adapters import MAX_ASKED_BYTES, AdapterRef, AdapterWanted
from contracts.errors import StoreUnavailable
from contracts.inference import Accepted, Delta, Failed, Finished
from contracts.pair_key import PairKey
from contracts.wire import FRAGMENT_BYTES
from gateway.upstream.adapter_feed import MAX_READS, MAX_TIMES
from gateway.upstream.fed_links import FedLinks
from gateway.upstream.node_address import NodeAddress
from gateway.upstream.node_stream import NodeStream
from tests.gateway.adapter_program import run_fed_links
from tests.gateway.file_reader import FileReader
from tests.gateway.running_gateway import wait_until
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream
from tests.gateway.upstream.upstream_words import GRANT

BODY = b"x"
MIB = 1024 * 1024
CONTENT = random.Random(3).randbytes(5 * MIB + 777)


@pytest.fixture
def reader(tmp_path: Path) -> FileReader:
    return FileReader(tmp_path)


@pytest.fixture
def ref(reader: FileReader) -> AdapterRef:
    return reader.put(CONTENT)


def run_links(
    node: ScriptedNode, reader: Any, queue_deadline_s: float = 30.0
) -> AbstractAsyncContextManager[FedLinks]:
    """Links that stand."""
    node.takes_grants_again = True
    address = NodeAddress(node.node_id, node.url, PairKey(node.pair_key), None)
    return run_fed_links(address, reader, queue_deadline_s)


async def read_whole(stream: ScriptedStream) -> bytes:
    """The whole file, as a node reads it."""
    read = b""
    for first in range(0, len(CONTENT), MAX_ASKED_BYTES):
        read += await stream.read_adapter(first, min(MAX_ASKED_BYTES, len(CONTENT) - first))
    return read


async def fail(stream: NodeStream) -> str:
    """The code of the error that the stream ends with."""
    event = (await asyncio.wait_for(stream.take_all(), 10))[-1]
    assert isinstance(event, Failed)
    return event.error.code


async def test_a_node_gets_the_file_in_fragments_and_in_order(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    received: list[bytes] = []

    async def script(stream: ScriptedStream) -> None:
        received.append(await read_whole(stream))
        await stream.put(AdapterWanted(0, MAX_ASKED_BYTES))
        pieces = [await stream.pieces.get() for _ in range(MAX_ASKED_BYTES // FRAGMENT_BYTES)]
        assert [piece.first for piece in pieces] == [*range(0, MAX_ASKED_BYTES, FRAGMENT_BYTES)]
        await stream.answer("Hi")

    node.script = script
    async with run_links(node, reader) as links:
        stream = links.open(node.node_id, GRANT, BODY, adapter=ref)
        events = await asyncio.wait_for(stream.take_all(), 20)
    assert [type(event) for event in events] == [Accepted, Delta, Finished]
    assert received == [CONTENT]
    assert max(num_bytes for _, num_bytes in reader.reads) <= MAX_ASKED_BYTES
    assert stream.feed is None  # nothing refers to the file any more


async def test_other_streams_go_on_while_a_file_is_on_its_way(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    reader.held = asyncio.Event()

    async def script(stream: ScriptedStream) -> None:
        if len(node.streams) == 1:
            await read_whole(stream)
        await stream.answer("Hi")

    node.script = script
    async with run_links(node, reader) as links:
        waiting = links.open(node.node_id, GRANT, BODY, adapter=ref)
        await wait_until(lambda: bool(reader.reads))
        for _ in range(3):
            events = await asyncio.wait_for(links.open(node.node_id, GRANT, BODY).take_all(), 5)
            assert isinstance(events[-1], Finished)
        assert not waiting.is_over
        reader.held.set()
        assert isinstance((await asyncio.wait_for(waiting.take_all(), 20))[-1], Finished)


@pytest.mark.parametrize(
    "asked",
    [
        [(len(CONTENT) - 10, 11)],
        [(len(CONTENT), 1)],
        [(0, MAX_ASKED_BYTES), (MAX_ASKED_BYTES, 1)],
    ],
    ids=["beyond_the_end", "behind_the_end", "more_than_a_window"],
)
async def test_a_node_that_asks_for_what_it_may_not_have_loses_the_stream(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef, asked: list[tuple[int, int]]
) -> None:
    reader.held = asyncio.Event()

    async def script(stream: ScriptedStream) -> None:
        for first, num_bytes in asked:
            await stream.put(AdapterWanted(first, num_bytes))

    node.script = script
    async with run_links(node, reader) as links:
        stream = links.open(node.node_id, GRANT, BODY, adapter=ref)
        assert await fail(stream) == "stream_broken"
        assert not stream.is_ours
        await wait_until(node.streams[0].aborted.is_set)
        await wait_until(lambda: not reader.num_reading)


async def test_a_request_without_an_adapter_has_none_to_ask_for(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    async def script(stream: ScriptedStream) -> None:
        await stream.put(AdapterWanted(0, 10))

    node.script = script
    async with run_links(node, reader) as links:
        with_none = links.open(node.node_id, GRANT, BODY)
        assert await fail(with_none) == "stream_broken"
        assert reader.reads == []
        control = links.open(node.node_id, GRANT, BODY, adapter=ref)
        await wait_until(lambda: reader.reads == [(0, 10)])
        assert not control.is_over


@pytest.mark.parametrize("num_bytes", [1, MAX_ASKED_BYTES])
async def test_a_node_that_asks_endlessly_is_cut_off(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef, num_bytes: int
) -> None:
    async def script(stream: ScriptedStream) -> None:
        while True:
            await stream.read_adapter(0, num_bytes)

    node.script = script
    async with run_links(node, reader) as links:
        stream = links.open(node.node_id, GRANT, BODY, adapter=ref)
        assert await fail(stream) == "stream_broken"
    num_reads = len(reader.reads)
    assert num_reads * max(num_bytes, FRAGMENT_BYTES) <= MAX_TIMES * len(CONTENT)
    assert num_reads * max(num_bytes, FRAGMENT_BYTES) > (MAX_TIMES - 1) * len(CONTENT)


async def test_what_the_reader_says_is_what_the_stream_ends_with_and_no_fault_of_the_node(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    class Broken:
        async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
            raise StoreUnavailable("The store is away.")

    class Defective:
        async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
            raise KeyError("a defect")

    class Short:
        async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
            return bytes(num_bytes - 1)

    async def script(stream: ScriptedStream) -> None:
        await read_whole(stream)

    node.script = script
    (reader.folder / ref.weights_sha256.hex()).unlink()
    for held, code in (
        (reader, "not_found"),
        (Broken(), "store_unavailable"),
        (Defective(), "internal_error"),
        (Short(), "internal_error"),
    ):
        async with run_links(node, held) as links:
            stream = links.open(node.node_id, GRANT, BODY, adapter=ref)
            assert await fail(stream) == code
            assert stream.is_ours
            await wait_until(node.streams[-1].aborted.is_set)


async def test_few_files_are_read_at_once_for_one_node(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    reader.delay_s = 0.01

    async def script(stream: ScriptedStream) -> None:
        assert await read_whole(stream) == CONTENT
        await stream.answer("Hi")

    node.script = script
    async with run_links(node, reader) as links:
        streams = [links.open(node.node_id, GRANT, BODY, adapter=ref) for _ in range(12)]
        ends = [(await asyncio.wait_for(one.take_all(), 60))[-1] for one in streams]
    assert all(isinstance(end, Finished) for end in ends)
    assert reader.most_reading == MAX_READS


async def test_a_stream_that_ends_gives_its_place_among_the_readers_back(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    reader.held = asyncio.Event()

    async def script(stream: ScriptedStream) -> None:
        await stream.put(AdapterWanted(0, 100))
        await stream.confirm_abort()

    node.script = script
    async with run_links(node, reader) as links:
        streams = [links.open(node.node_id, GRANT, BODY, adapter=ref) for _ in range(MAX_READS)]
        await wait_until(lambda: len(reader.reads) == MAX_READS)
        late = links.open(node.node_id, GRANT, BODY, adapter=ref)
        await wait_until(lambda: len(node.streams) == MAX_READS + 1)
        await asyncio.sleep(0.1)
        assert len(reader.reads) == MAX_READS  # the control: it waits
        streams[0].abort()
        await wait_until(lambda: len(reader.reads) == MAX_READS + 1)
        assert reader.num_cancelled == 1
        assert not late.is_over


async def test_the_end_of_the_connection_ends_the_reading(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    reader.held = asyncio.Event()

    async def script(stream: ScriptedStream) -> None:
        await read_whole(stream)

    node.script = script
    async with run_links(node, reader) as links:
        stream = links.open(node.node_id, GRANT, BODY, adapter=ref)
        await wait_until(lambda: reader.num_reading == 1)
        node.drop_connections()
        assert await fail(stream) == "stream_broken"
        await wait_until(lambda: reader.num_reading == 0)
        assert reader.num_cancelled == 1


async def test_whoever_waits_for_its_adapter_is_not_late_while_that_comes(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    deadline_s, reader.delay_s = 1.0, 0.5
    waits = False

    async def script(stream: ScriptedStream) -> None:
        if waits:
            await stream.confirm_abort()
        assert await read_whole(stream) == CONTENT
        await stream.answer("Hi")

    node.script = script
    async with run_links(node, reader, deadline_s) as links:
        stream = links.open(node.node_id, GRANT, BODY, adapter=ref)
        events = await asyncio.wait_for(stream.take_all(), 20)
        assert isinstance(events[-1], Finished)
        assert len(reader.reads) * reader.delay_s > 2 * deadline_s
        waits = True  # the control: what waits for something else is late
        late = links.open(node.node_id, GRANT, BODY, adapter=ref)
        assert await fail(late) == "pool_saturated"


async def test_nothing_is_read_for_a_stream_that_is_aborted_whatever_its_node_says(
    node: ScriptedNode, reader: FileReader, ref: AdapterRef
) -> None:
    reader.held = asyncio.Event()

    async def script(stream: ScriptedStream) -> None:
        await stream.put(AdapterWanted(0, 100))
        await stream.aborted.wait()
        await stream.put(AdapterWanted(100, 100))  # it may have asked before it heard of that

    node.script = script
    async with run_links(node, reader) as links:
        stream = links.open(node.node_id, GRANT, BODY, adapter=ref)
        await wait_until(lambda: reader.num_reading == 1)
        stream.abort()
        await asyncio.sleep(0.2)
        assert (stream.is_over, reader.num_reading, len(reader.reads)) == (False, 0, 1)
