"""Clients that read slowly have no node of ours taken for broken: events go through a node's own
end of the wire.
"""

import asyncio
import contextlib
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    ToolCallDelta,
    Usage,
)
from contracts.wire import StreamEvent
from gpu_pool.server.stream_meter import NodeMeter
from gpu_pool.server.wire.stream import WireStream
from tests.gateway.raw_http import format_request
from tests.gateway.running_gateway import run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedStream, run_node
from tests.gateway.test_continuation import are_known

NUM_CHOICES, NUM_CALLS = 128, 2
END = Finished(FinishReason.TOOL_CALLS, Usage(7, 0, 1000))


async def think_say_and_call(stream: ScriptedStream) -> None:
    """Many choices that each think, speak and make two calls while their reader pauses."""
    sent: list[StreamEvent] = []
    credit = stream.credit
    wire = WireStream(stream.grant, 0, credit, sent.append, NodeMeter(lambda: 0.0))
    say = wire._on_event  # type: ignore[reportPrivateUsage]
    say(Accepted(7, 0))
    for choice in range(66):  # more than a socket takes of one who does not read
        say(Delta("x" * 100_000, (choice,), choice))
        await _flush(stream, sent)
    await asyncio.sleep(0.2)
    for choice in range(NUM_CHOICES):
        say(ReasoningDelta("I think.", (1,), choice))
        say(Delta("Let me see.", (2,), choice))
        for call in range(NUM_CALLS):
            say(ToolCallDelta(call, f"call_{choice}_{call}", "look", "{}", (3,), choice))
    for choice in range(NUM_CHOICES):
        say(ChoiceFinished(choice, FinishReason.TOOL_CALLS))
    say(END)
    while await _flush(stream, sent) != END:
        stream.credited.clear()
        if stream.credit == credit:
            await stream.credited.wait()
        gained, credit = stream.credit - credit, stream.credit
        wire.add_credit(gained)


async def _flush(stream: ScriptedStream, sent: list[StreamEvent]) -> StreamEvent | None:
    """Sends what the wire's end has let out; the last of it."""
    events = list(sent)
    sent.clear()
    for event in events:
        await stream.put(event)
    return events[-1] if events else None


def read_to_the_end(client: socket.socket) -> bytes:
    client.settimeout(20)
    body = b""
    with contextlib.suppress(TimeoutError):
        while data := client.recv(1 << 20):
            body += data
            if body.endswith(b"0\r\n\r\n"):
                break
    return body


@pytest.mark.parametrize("pause_s", [0.5, 0.0])
async def test_a_pause_of_its_client_is_no_fault_of_a_node(
    tmp_path: Path, database_template: Path, pause_s: float
) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(run_node("node-0", "weur"))
        node.script = think_say_and_call
        gateway = await stack.enter_async_context(run_gateway(tmp_path, database_template, [node]))
        await wait_until_async(lambda: are_known(gateway, 1))
        client = stack.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", gateway.gateway.port))
        body = {
            "model": MODEL,
            "stream": True,
            "n": NUM_CHOICES,
            "messages": [{"role": "user", "content": "Hi"}],
        }
        path = gateway.account_path("/ai/v1/chat/completions")
        client.sendall(format_request(gateway, body, path=path))
        await wait_until(lambda: bool(node.streams))
        await asyncio.sleep(pause_s)
        answer = await asyncio.to_thread(read_to_the_end, client)
        assert b"[DONE]" in answer, answer[-300:]
        for choice in range(NUM_CHOICES):
            assert f"call_{choice}_{NUM_CALLS - 1}".encode() in answer
        assert not gateway.gateway._pool.fleet.list_troubled()  # type: ignore[reportPrivateUsage]
