"""The link to a node over a real socket: proof, reports, fencing, reconnection."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from contracts.errors import NodeUnreachable
from contracts.fleet import NodeReport
from contracts.ids import GatewayId, NodeId
from contracts.inference import Accepted, Delta, Failed, Finished, FinishReason, Usage
from contracts.pair_key import PairKey
from contracts.wire import WIRE_PATH, encode_frame
from gateway.sources import create_sources
from gateway.upstream.connection import StreamBounds
from gateway.upstream.link import NodeLink
from gateway.upstream.node_address import NodeAddress, create_session
from tests.gateway.running_gateway import wait_until
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream
from tests.gateway.upstream.upstream_words import GRANT

BODY = b"x"
REPORT_MS = 321


class Listener:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.reports: list[NodeReport] = []
        self.losses: list[NodeId] = []

    def record_report(self, report: NodeReport) -> None:
        self.reports.append(report)

    def record_link_lost(self, node_id: NodeId) -> None:
        self.losses.append(node_id)

    def choose_report_ms(self, node_id: NodeId) -> int:
        return REPORT_MS


@asynccontextmanager
async def run_link(
    node: ScriptedNode,
    silence_s: float = 10.0,
    open_session: Callable[[], aiohttp.ClientSession] = create_session,
) -> AsyncGenerator[tuple[NodeLink, Listener]]:
    """A link that keeps connecting to `node` until the end of the block."""
    listener = Listener()
    node.takes_grants_again = True
    pair_key = PairKey(node.pair_key)
    address = NodeAddress(node.node_id, node.url, pair_key, None)
    bounds = StreamBounds(queue_deadline_s=5, request_deadline_s=5, silence_s=silence_s)
    link = NodeLink(address, GatewayId("gateway-1"), listener, bounds, create_sources())
    async with open_session() as session:
        task = asyncio.create_task(link.run(session))
        try:
            yield link, listener
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_proven_node_is_heard_and_served(node: ScriptedNode) -> None:
    async def script(stream: ScriptedStream) -> None:
        await stream.answer("Hi")

    node.script = script
    async with run_link(node) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        assert listener.reports[0].node_id == node.node_id
        assert node.report_ms == REPORT_MS
        events = await link.open(GRANT, BODY).take_all()
        assert [type(event) for event in events] == [Accepted, Delta, Finished]
        assert link.num_streams == 0


async def test_an_impostor_is_never_sent_anything(node: ScriptedNode) -> None:
    node.proof_key = secrets.token_bytes(32)
    async with run_link(node) as (link, listener):
        await asyncio.sleep(0.5)
        with pytest.raises(NodeUnreachable):
            link.open(GRANT, BODY)
        assert (node.num_hellos, listener.reports) == (0, [])
        node.proof_key = node.pair_key  # the control: with the key it is let in
        await wait_until(lambda: bool(listener.reports))
        assert node.num_hellos == 1


@pytest.mark.parametrize("is_control", [False, True], ids=["ours", "control"])
async def test_a_node_cannot_send_the_gateway_elsewhere(
    node: ScriptedNode, *, is_control: bool
) -> None:
    """To an address inside its network, or past `wss://`: aiohttp by itself follows."""
    node_port, asked = node.port, asyncio.Event()

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: ")
        writer.write(f"http://127.0.0.1:{node_port}{WIRE_PATH}\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        asked.set()

    server = await asyncio.start_server(redirect, "127.0.0.1", 0)
    async with server:
        node.port = server.sockets[0].getsockname()[1]
        open_session = aiohttp.ClientSession if is_control else create_session
        async with run_link(node, open_session=open_session) as (link, _):
            await asyncio.wait_for(asked.wait(), 5)
            if is_control:
                await wait_until(lambda: link.is_up)
            else:
                await asyncio.sleep(0.3)
                assert (link.is_up, node.num_hellos) == (False, 0)


async def test_a_report_in_the_name_of_another_node_is_ignored(node: ScriptedNode) -> None:
    async with run_link(node) as (link, listener):
        await wait_until(lambda: link.is_up and node.num_hellos == 1)
        own_id, node.node_id = node.node_id, NodeId("another")
        num_reports = len(listener.reports)
        await node.send_report()
        await asyncio.sleep(0.5)
        assert all(report.node_id == own_id for report in listener.reports[num_reports:])


async def test_the_link_comes_back_after_the_node_was_gone(node: ScriptedNode) -> None:
    async with run_link(node) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        await node.stop()
        await wait_until(lambda: not link.is_up)
        assert listener.losses == [node.node_id]
        await asyncio.sleep(0.3)
        listener.reports.clear()
        await node.start()
        await wait_until(lambda: bool(listener.reports))
        assert link.is_up


async def test_every_stream_fails_when_the_connection_drops(node: ScriptedNode) -> None:
    async def hang(stream: ScriptedStream) -> None:
        await stream.put(Accepted(1, 0))

    node.script = hang
    async with run_link(node) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        streams = [link.open(GRANT, BODY) for _ in range(3)]
        assert [type(e) for stream in streams for e in await stream.take()] == [Accepted] * 3
        node.drop_connections()
        for stream in streams:
            (event,) = await stream.take()
            assert isinstance(event, Failed)
            assert event.error.code == "stream_broken"


async def test_an_answer_to_another_attempt_is_dropped(node: ScriptedNode) -> None:
    async def answer_as_another(stream: ScriptedStream) -> None:
        late = Delta("late", (1,))
        await node.sockets[0].send_bytes(encode_frame([(1, 2, late), (1, 0, late)]))
        await stream.answer("in time")

    node.script = answer_as_another
    async with run_link(node) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        events = await link.open(GRANT, BODY).take_all()
        assert [event.text for event in events if isinstance(event, Delta)] == ["in time"]


async def test_a_malformed_event_harms_its_own_stream_only(node: ScriptedNode) -> None:
    async def hang(stream: ScriptedStream) -> None:
        await stream.put(Accepted(1, 0))

    node.script = hang
    async with run_link(node) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        bad, good = link.open(GRANT, BODY), link.open(GRANT, BODY)
        await bad.take()
        await good.take()
        finished = Finished(FinishReason.STOP, Usage(1, 0, 1))
        frame = [(bad.stream_id, 1, ["what", "is", "this"]), (good.stream_id, 1, finished)]
        await node.sockets[0].send_bytes(msgspec.msgpack.encode(frame))
        (event,) = await bad.take()
        assert isinstance(event, Failed)
        assert await good.take() == [finished]
        assert link.is_up


async def test_a_frame_that_is_not_one_ends_the_connection(node: ScriptedNode) -> None:
    async with run_link(node) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        await node.sockets[0].send_bytes(b"\xc1nonsense")
        await wait_until(lambda: bool(listener.losses))
        await wait_until(lambda: node.num_hellos == 2)
        assert link.is_up


async def test_a_node_that_exceeds_its_credit_is_cut_off(node: ScriptedNode) -> None:
    async def flood(stream: ScriptedStream) -> None:
        for index in range(10_000):
            await stream.put(Delta("x" * 1000, (index,)))

    node.script = flood
    async with run_link(node) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        stream = link.open(GRANT, BODY)
        await wait_until(lambda: stream.is_over)
        events = await stream.take()
        assert isinstance(events[-1], Failed)
        assert len(events) < 1_000
        await wait_until(node.streams[0].aborted.is_set)


async def test_a_node_that_falls_silent_is_dropped_and_tried_anew(
    node: ScriptedNode,
) -> None:
    async def hang(stream: ScriptedStream) -> None:
        await stream.put(Accepted(1, 0))

    node.script = hang
    async with run_link(node, silence_s=0.8) as (link, listener):
        await wait_until(lambda: bool(listener.reports))
        stream = link.open(GRANT, BODY)
        await stream.take()
        for _ in range(12):  # the control: while it reports it is kept
            await asyncio.sleep(0.1)
            link.sweep()
        assert (link.is_up, stream.is_over) == (True, False)
        node.reports = False

        def is_dropped() -> bool:
            link.sweep()
            return bool(listener.losses)

        await wait_until(is_dropped)
        (event,) = await stream.take()
        assert isinstance(event, Failed)
        node.reports = True
        listener.reports.clear()
        await wait_until(lambda: bool(listener.reports))
