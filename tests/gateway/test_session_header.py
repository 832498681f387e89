"""`x-session-affinity` on the way from a client to a node: where the last turn was, goes the next.

Every prompt begins like no other, so that nothing but the header tells what belongs together.
"""

import itertools
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, ScriptedNode, run_node

_NUMBERS = itertools.count(1000)
BUSY = 100_000
"""Tokens that wait at a node."""


@pytest.fixture
async def nodes() -> AsyncGenerator[list[ScriptedNode]]:
    """Two that are alike: of equals the first is chosen."""
    async with run_node("node-1", "weur") as first, run_node("node-2", "weur") as second:
        yield [first, second]


@pytest.fixture
async def pair(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> AsyncGenerator[RunningGateway]:
    """A gateway before both, of which the first is busy."""
    async with run_gateway(tmp_path, database_template, nodes) as gateway:
        nodes[0].num_queued_tokens = BUSY
        await wait_for(gateway, "node-2")
        yield gateway


async def ask(
    gateway: RunningGateway, session: str | None = None, tenant: Tenant | None = None
) -> tuple[str, str]:
    """The node that had the request, and by what it was picked."""
    tenant = tenant or gateway.tenant
    path = gateway.account_path(f"/ai/run/{MODEL}", tenant)
    headers = {"x-hearth-explain": "1"}
    if session is not None:
        headers["x-session-affinity"] = session
    body = to_bytes({"prompt": f"{next(_NUMBERS)} " * 200})
    reply = await gateway.send("POST", path, body, api_token=tenant.api_token, headers=headers)
    assert reply.status == 200, reply.body
    pick = reply.headers["x-hearth-explain"].partition(";")[0]
    return reply.headers["x-hearth-node"], pick


async def wait_for(gateway: RunningGateway, node_id: str, session: str | None = None) -> None:
    """Returns once a turn goes to that node because it costs the least there."""

    async def is_so() -> bool:
        return await ask(gateway, session) == (node_id, "pick=cost")

    await wait_until_async(is_so)


async def test_a_turn_goes_where_the_session_was_until_that_node_is_much_busier(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    assert (await ask(pair, "agent-1"))[0] == "node-2"
    nodes[0].num_queued_tokens = 0
    await wait_for(pair, "node-1")
    for _ in range(5):
        assert await ask(pair, "agent-1") == ("node-2", "pick=session")
        assert await ask(pair) == ("node-1", "pick=cost")  # the control: nobody says whose turn
        assert (await ask(pair, f"agent-{next(_NUMBERS)}"))[0] == "node-1"
    nodes[1].num_queued_tokens = BUSY
    await wait_for(pair, "node-1", "agent-1")


async def test_a_session_of_the_same_name_is_another_one_in_another_account(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    stranger = await pair.add_tenant()
    assert (await ask(pair, "agent-1"))[0] == "node-2"
    nodes[0].num_queued_tokens = 0
    await wait_for(pair, "node-1")
    assert await ask(pair, "agent-1", stranger) == ("node-1", "pick=cost")
    assert await ask(pair, "agent-1") == ("node-2", "pick=session")  # the control: it is remembered
