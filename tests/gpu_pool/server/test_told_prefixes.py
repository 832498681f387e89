"""Of which prompts a real node tells: of those that it computes, and whose account lets it."""

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from contracts.grant import RetentionClass
from contracts.inference import Accepted
from contracts.prefix_keys import MAX_PROMPT_KEYS, pack_keys, unpack_keys
from gateway.routing.prefix_keys import PIECE_ENDS
from tests.fixtures.gateway_client import (
    GatewayClient,
    NodeAddress,
    ask,
    continue_text,
    failure_code,
)
from tests.fixtures.node_process import run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAddress]:
    folder = tmp_path_factory.mktemp("node")
    with run_node_process(folder, write_random_checkpoint(folder / "model")) as (_, address):
        yield address


def draw_names(count: int) -> tuple[int, ...]:
    """Names that nothing else has."""
    return tuple(secrets.randbits(64) for _ in range(count))


async def list_told(node: NodeAddress) -> set[int]:
    """What a gateway hears that has just come."""
    async with GatewayClient(node) as late:
        return set(unpack_keys((await asyncio.wait_for(late.reports.get(), 5)).prefixes))


async def test_prompts_that_are_refused_are_not_told_and_crowd_out_none(node: NodeAddress) -> None:
    mine, refused = draw_names(8), draw_names(1)
    endless = continue_text(node.model, "many words " * 200_000, max_tokens=2)
    async with GatewayClient(node) as client:
        events = await client.generate(ask(node.model, max_tokens=2), prefixes=pack_keys(mine))
        assert isinstance(events[0], Accepted)
        assert set(mine) <= await list_told(node)  # the control
        events = await client.generate(endless, prefixes=pack_keys(refused))
        assert failure_code(events)
        for _ in range(64):
            names = draw_names(MAX_PROMPT_KEYS)
            assert failure_code(await client.generate(b"nonsense", prefixes=pack_keys(names)))
    told = await list_told(node)
    assert set(mine) <= told
    assert not told & {*refused, *names}


async def test_nothing_is_told_under_retention_none_whatever_a_gateway_names(
    node: NodeAddress,
) -> None:
    names = draw_names(3)
    async with GatewayClient(node) as client:
        request = ask(node.model, max_tokens=2)
        none = RetentionClass.NONE
        events = await client.generate(request, prefixes=pack_keys(names), retention=none)
        assert isinstance(events[0], Accepted)
    assert not set(names) & await list_told(node)


def test_a_prompt_has_no_more_names_than_a_node_takes() -> None:
    assert len(PIECE_ENDS) == MAX_PROMPT_KEYS
