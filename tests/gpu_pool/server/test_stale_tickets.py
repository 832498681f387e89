"""A ticket that has expired, or is for another life of the engine, costs a hand-over, no answer."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from contracts.codec import encode_request
from contracts.grant import seal_grant
from contracts.ids import AccountId, NodeId
from contracts.inference import Accepted, Failed, Finished
from contracts.kv_transfer import KvGaveUp, KvHalf, KvTicket, digest_account, seal_ticket
from contracts.wire import Open, StreamEvent, decode_frame_from_node, encode_frame
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import MANY, GatewayClient, ask
from tests.fixtures.node_process import MODEL

ACCOUNT, OTHER = AccountId("a" * 32), AccountId("b" * 32)


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as node:
        yield node


async def generate(
    node: DoubleNode, half: KvHalf, left_s: float, account_id: AccountId = ACCOUNT
) -> list[StreamEvent]:
    """All that comes of a request with a ticket for a life of the engine that is no more."""
    node_id, client = NodeId(node.settings.node_id), GatewayClient(node.address)
    events: list[StreamEvent] = []
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(20):
        stack.push_async_callback(client.close)
        await client.send_frame(encode_frame([(0, 0, await client.connect())]))
        grant = client.create_grant(account_id=ACCOUNT)
        ticket = KvTicket(
            half=half,
            request_id=grant.request_id,
            account_digest=digest_account(account_id),
            model=MODEL,
            revision="rev",
            layout="layout",
            deadline_unix_ms=int((time.time() + left_s) * 1000),
            prefill_node=node_id,
            prefill_incarnation="1",
            decode_node=node_id,
            decode_incarnation="2",
        )
        body, key = encode_request(ask(MODEL, ignore_eos=True)), client.connection_key
        sealed = seal_grant(grant, key), seal_ticket(ticket, key)
        asked = Open(sealed[0], len(body), MANY, body, sealed[1])
        await client.send_frame(encode_frame([(1, 0, asked)]))
        while not events or not isinstance(events[-1], Finished | Failed):
            entries = decode_frame_from_node(await client.socket.receive_bytes())
            events += [cast(StreamEvent, entry.message) for entry in entries if entry.stream_id]
    return events


@pytest.mark.parametrize("left_s", [-1, 60])
async def test_the_node_that_answers_computes_the_prompt_itself(
    node: DoubleNode, left_s: float
) -> None:
    """A node that stood still for longer than its tickets had, or that has started again."""
    first, second, *_, last = await generate(node, KvHalf.DECODE, left_s)
    assert isinstance(first, KvGaveUp)
    assert isinstance(second, Accepted)
    assert isinstance(last, Finished)
    assert last.usage.num_completion_tokens == 8


async def test_what_is_nobodys_right_is_refused_all_the_same(node: DoubleNode) -> None:
    """The controls: a prompt that nobody waits for any more, and another account's ticket."""
    late, unfit = [await generate(node, KvHalf.PREFILL, left_s) for left_s in (-1, 60)]
    foreign = await generate(node, KvHalf.DECODE, 60, OTHER)
    ends = [events[-1] for events in (late, unfit, foreign)]
    assert [end.error.code for end in ends if isinstance(end, Failed)] == [
        "deadline_exceeded",
        "transfer_failed",
        "forbidden",
    ]
