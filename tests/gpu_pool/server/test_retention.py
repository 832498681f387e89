"""Retention `none`: no later request finds anything, while the same one's choices share."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from contracts.grant import RetentionClass
from contracts.inference import Accepted, Finished
from gpu_pool.server.choice import Choice
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import GatewayClient, ask
from tests.fixtures.node_process import MODEL

LONG = "The quick brown fox jumps. " * 12


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as node:
        yield node


@pytest.mark.parametrize("retention", RetentionClass)
async def test_a_repeat_finds_its_prefix_only_where_it_may_be_kept(
    node: DoubleNode, retention: RetentionClass
) -> None:
    found: list[int] = []
    async with GatewayClient(node.address) as client:
        for _ in range(2):
            events = await client.generate(ask(MODEL, LONG), retention=retention)
            assert isinstance(events[0], Accepted)
            assert isinstance(events[-1], Finished)
            found.append(events[0].num_cached_tokens)
    assert found[0] == 0
    assert (found[1] > 50) == (retention is RetentionClass.STANDARD)


async def test_the_choices_of_one_request_share_its_prompt(
    node: DoubleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached: list[int] = []
    on_started = Choice.on_started

    def note(choice: Choice, num_cached_tokens: int) -> None:
        cached.append(num_cached_tokens)
        on_started(choice, num_cached_tokens)

    monkeypatch.setattr(Choice, "on_started", note)
    first = ask(MODEL, LONG, ignore_eos=True, max_tokens=400)  # still running when others start
    request = msgspec.structs.replace(first, num_choices=3)
    async with GatewayClient(node.address) as client:
        await client.generate(request, retention=RetentionClass.NONE)
    assert cached[0] == 0
    assert all(num_cached > 50 for num_cached in cached[1:])
