"""A request that no node may take leaves nothing of itself behind, however large it was."""

import gc
import sys
import tracemalloc
from collections.abc import Generator
from typing import Any

import pytest

from gateway.routing.decisions import Decisions
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import MODEL

NOWHERE = {"x-hearth-regions": "eu-west"}
"""A region that the only node is not in."""
PROMPT_BYTES = 1_000_000
NUM_REQUESTS = 12
SOME_OF_THEM = PROMPT_BYTES * NUM_REQUESTS // 2


@pytest.fixture
def traced() -> Generator[None]:
    """Memory is counted."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def measure_left(gateway: RunningGateway) -> int:
    """How many bytes are taken after the requests that were not before."""
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    body = b'{"prompt": "' + b"x" * PROMPT_BYTES + b'"}'
    for _ in range(NUM_REQUESTS):
        reply = await gateway.send(
            "POST", gateway.account_path(f"/ai/run/{MODEL}"), body, headers=NOWHERE
        )
        assert reply.status in (403, 503), reply.body
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    return after - before


@pytest.mark.usefixtures("node", "traced")
async def test_a_refused_request_is_not_kept(gateway: RunningGateway) -> None:
    assert await measure_left(gateway) < SOME_OF_THEM


@pytest.mark.usefixtures("node", "traced")
async def test_whoever_keeps_the_error_keeps_the_request(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    kept: list[Any] = []
    monkeypatch.setattr(Decisions, "note", lambda *_: kept.append(sys.exception()))
    assert await measure_left(gateway) > SOME_OF_THEM
    assert len(kept) >= NUM_REQUESTS // 2  # a busy machine may refuse some of them earlier
