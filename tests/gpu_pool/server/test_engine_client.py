"""The server's end of the pipes where nobody reads at the other end any more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import ModelCold
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.transport import ZmqTransport
from gpu_pool.plan import SequenceId
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
