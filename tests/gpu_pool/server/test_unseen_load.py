"""How busy a core is, in the words of its server: what the core has said, and what it has not seen.

The core's end is a scheduler over the executor double that takes its steps when the test says so.
"""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from contracts.errors import ServiceError
from gpu_pool.engine.messages import AddSequence, SequenceFinished, TextsEncoded
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.transport import ZmqTransport
from gpu_pool.plan import SequenceId, TokenScore
from gpu_pool.server.engine_client import EngineClient
from tests.gateway.running_gateway import wait_until
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request

CHUNK = 32


class Deaf:
    """Wants to know nothing, neither of the core nor of a sequence."""

    def on_started(self, num_cached_tokens: int) -> None: ...
    def on_prompt_scores(self, scores: list[TokenScore]) -> None: ...
    def on_tokens(self, token_ids: list[int], scores: list[TokenScore]) -> None: ...
    def on_encoded(self, encoded: TextsEncoded) -> None: ...
    def on_finished(self, finished: SequenceFinished) -> None: ...
    def on_broken(self, error: ServiceError) -> None: ...
    def on_idle(self) -> None: ...


class SteppedCore:
    """The core's end of the pipes."""

    def __init__(self, to_core: str, from_core: str) -> None:
        self._rig = EngineRig(
            SchedulerSettings(max_batch_tokens=CHUNK, max_chunk_tokens=CHUNK, max_running=8)
        )
        self._transport = ZmqTransport(to_core, from_core)

    async def take_in(self, count: int) -> None:
        """Takes in so many requests and tells that."""
        num_taken = 0
        while num_taken < count:
            for message in await asyncio.to_thread(self._transport.receive, True, 10):
                if isinstance(message, AddSequence):
                    self._rig.scheduler.add(message)
                    num_taken += 1
        self.tell()

    def step(self) -> None:
        """Computes one step and tells what it brought."""
        plan = self._rig.scheduler.schedule(0)
        assert plan is not None
        self._rig.executor.submit(plan)
        self._rig.scheduler.update(self._rig.executor.collect())
        self.tell()

    def tell(self) -> None:
        """Sends what is new."""
        output = self._rig.scheduler.take_output()
        assert output is not None
        self._transport.send(output)

    def close(self) -> None:
        self._transport.close()


@asynccontextmanager
async def run_both(folder: Path) -> AsyncGenerator[tuple[EngineClient, SteppedCore]]:
    """The two ends."""
    endpoints = f"ipc://{folder}/to", f"ipc://{folder}/from"
    client = EngineClient(*endpoints, Deaf())
    core = SteppedCore(*endpoints)
    listening = asyncio.create_task(client.run())
    await wait_until(client.ping)  # until they are connected nothing can be sent
    try:
        yield client, core
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        core.close()
        client.close()


def add(client: EngineClient, num_tokens: int, cached_share: float = 0.0) -> None:
    """One more request."""

    def create(sequence_id: SequenceId) -> AddSequence:
        request = create_request(sequence_id, [sequence_id] * num_tokens, max_tokens=1)
        return msgspec.structs.replace(request, cached_share=cached_share)

    client.add(create, Deaf())


def read(client: EngineClient) -> tuple[int, int]:
    """Requests that wait or are on their way, and tokens of prompts that are to be computed."""
    load = client.load
    return load.num_waiting + load.num_coming, load.num_queued_tokens


async def test_requests_count_before_the_core_has_seen_them_and_not_twice_once_it_has(
    tmp_path: Path,
) -> None:
    async with run_both(tmp_path) as (client, core):
        add(client, 20)
        add(client, 10)
        assert read(client) == (2, 30)
        await core.take_in(2)
        await wait_until(lambda: client.load.latest_id == 2)
        assert read(client) == (2, 30)
        add(client, 15)  # while a step is under way
        assert read(client) == (3, 45)
        core.step()  # both prompts, of which each gets its only token
        await wait_until(lambda: read(client) == (1, 15))
        await core.take_in(1)
        await wait_until(lambda: client.load.latest_id == 3)
        assert read(client) == (1, 15)
        core.step()
        await wait_until(lambda: read(client) == (0, 0))


@pytest.mark.parametrize(
    ("share", "num_left"), [(0.75, 5), (1.0, 0), (0.0, 20), (-3.0, 20), (7.0, 0), (math.nan, 20)]
)
async def test_what_is_expected_in_the_cache_counts_until_the_core_has_looked(
    tmp_path: Path, share: float, num_left: int
) -> None:
    async with run_both(tmp_path) as (client, core):
        add(client, 20, share)
        assert read(client) == (1, num_left)
        await core.take_in(1)
        await wait_until(lambda: client.load.latest_id == 1)
        assert read(client) == (1, 20)  # it has nothing


async def test_of_a_long_prompt_it_is_told_how_much_is_left_though_no_token_has_come(
    tmp_path: Path,
) -> None:
    async with run_both(tmp_path) as (client, core):
        add(client, 4 * CHUNK)
        await core.take_in(1)
        for num_left in (3, 2, 1, 0):
            core.step()
            await wait_until(lambda num_left=num_left: read(client) == (0, num_left * CHUNK))
