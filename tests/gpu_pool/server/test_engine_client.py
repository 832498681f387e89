"""The server's end of the pipes where nobody reads at the other end, or what comes is missed."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import zmq

from contracts.errors import ModelCold
from gpu_pool.engine.messages import AddSequence, Pong
from gpu_pool.engine.transport import ZmqTransport
from gpu_pool.plan import SequenceId
from gpu_pool.server.core_watch import CoreWatch
from gpu_pool.server.engine_client import EngineClient
from tests.gateway.running_gateway import wait_until
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.server.test_unseen_load import Deaf


def describe(sequence_id: SequenceId) -> AddSequence:
    """A short request."""
    return create_request(sequence_id, [1, 2, 3], max_tokens=1)


@pytest.fixture
def endpoints(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/to", f"ipc://{tmp_path}/from"


@pytest.fixture
def client(endpoints: tuple[str, str]) -> Iterator[EngineClient]:
    client = EngineClient(*endpoints, Deaf())
    yield client
    client.close()


async def test_a_request_for_a_core_that_is_gone_hears_so_and_is_not_counted(
    client: EngineClient, endpoints: tuple[str, str]
) -> None:
    core = ZmqTransport(*endpoints)
    try:
        await wait_until(client.ping)
        client.add(describe, Deaf())
    finally:
        core.close()
    await wait_until(lambda: not client.ping())
    load = client.load
    with pytest.raises(ModelCold, match="engine has stopped"):
        client.add(describe, Deaf())
    assert client.num_sequences == 1
    assert client.load == load


async def test_so_does_one_that_was_prepared_before_the_pipes_were_closed(
    client: EngineClient,
) -> None:
    client.close()
    with pytest.raises(ModelCold, match="engine has stopped"):
        client.add(describe, Deaf())
    assert client.num_sequences == 0


async def test_a_word_of_which_nobody_was_told_is_heard_at_the_next_look(
    client: EngineClient, endpoints: tuple[str, str]
) -> None:
    core = ZmqTransport(*endpoints)
    reader = asyncio.create_task(client.run())
    try:
        core.send(Pong())
        await wait_until(lambda: client.num_heard == 1)
        descriptor = client._incoming.get(zmq.FD)  # pyright: ignore[reportPrivateUsage]
        assert asyncio.get_running_loop().remove_reader(descriptor)
        core.send(Pong())
        core.send(Pong())
        await asyncio.sleep(0.2)
        assert client.num_heard == 1  # the control: nobody hears of either
        client.look()
        await wait_until(lambda: client.num_heard == 3)
    finally:
        reader.cancel()
        core.close()


async def test_a_client_that_is_closed_has_nothing_to_look_at(client: EngineClient) -> None:
    client.close()
    client.look()
    assert client.num_heard == 0


class Unheard:
    """A client that answers pings, and hears of nothing but what it looks at."""

    owes_word = True

    def __init__(self) -> None:
        self.num_heard = self._num_said = 0

    def ping(self) -> bool:
        self._num_said += 1
        return True

    def look(self) -> None:
        self.num_heard = self._num_said


async def test_who_watches_a_core_looks_before_it_is_called_silent() -> None:
    client = Unheard()
    watch = CoreWatch(cast("EngineClient", client), 0.4, time.monotonic)
    with pytest.raises(TimeoutError):  # it is never called so
        await asyncio.wait_for(watch.wait_silent(lambda: True), 1.2)
    assert client.num_heard
