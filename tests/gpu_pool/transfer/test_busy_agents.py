"""More reads than the sockets between a core and its agent hold: neither waits for the other."""

import os
import signal
from typing import Final

import msgspec
import pytest

from contracts.kv_transfer import MAX_AGENT_BYTES, KvExported
from gpu_pool.transfer_settings import TransferSettings
from tests.gpu_pool.transfer.peer import Peer, open_peer, wait_until

NUM_LANDINGS: Final = 600
"""Whose ends alone are more than a socket holds that nobody reads."""
BLOCK_BYTES: Final = 64
BATCH_S: Final = 2.0


def widen(exported: KvExported) -> KvExported:
    """The same, with an agent that says as much of itself as it may."""
    return msgspec.structs.replace(exported, agent=exported.agent.ljust(MAX_AGENT_BYTES))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_core_never_waits_for_an_agent_that_has_not_taken_in_what_it_is_to_read(
    is_frozen: bool,
) -> None:
    """An agent that is busy gets to all of it; one that is stuck is ended in its time."""
    settings = TransferSettings(engine="memory", batch_s=BATCH_S)
    with open_peer(settings, NUM_LANDINGS, BLOCK_BYTES) as prefill:
        prefill.wait_ready()
        exported = widen(prefill.export([0]))
        with open_peer(settings, NUM_LANDINGS, BLOCK_BYTES) as decode:
            decode.wait_ready()
            if is_frozen:
                freeze(decode)
            for number in range(NUM_LANDINGS):
                decode.land(number, [number])
                decode.offer(number, exported)
            ends = [decode.wait_end() for _ in range(NUM_LANDINGS)]
            assert {end.sequence_id for end in ends} == set(range(NUM_LANDINGS))
            assert is_frozen or all(end.has_landed for end in ends)
            wait_until(lambda: decode.client.ready is not None, "an agent")
            assert decode.fetch(NUM_LANDINGS, prefill, 1).has_landed


def freeze(peer: Peer) -> None:
    """Stops an agent, which takes nothing in from here on."""
    process_id = peer.client.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGSTOP)
