"""Who freezes in the middle of a transfer and thaws when nobody waits any more harms nobody.

Over TCP, with the real engines. Blocks that were given back hold a canary: another account's.
"""

import os
import signal
import time
from random import Random
from typing import Final

import pytest

from gpu_pool.transfer.agent_watch import AgentWatch
from gpu_pool.transfer.content_tag import Tagger
from tests.gpu_pool.transfer.peer import Peer, need_engine, open_peers, wait_until

pytestmark = pytest.mark.slow

NUM_BLOCKS: Final = 512
BLOCK_BYTES: Final = 64 * 1024
BATCH_S: Final = 1.0
LATE_S: Final = 1.0
"""After a thaw; without the fence it takes less for the first late bytes to be seen."""
ENGINES: Final = ("nixl", "mooncake")


@pytest.fixture(autouse=True)
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen agent's own core stands still as well: it would have ended it by the thaw."""
    monkeypatch.setattr(AgentWatch, "is_silent", lambda *_, **__: False)


def count_changed(peer: Peer, content: bytes) -> int:
    """Blocks that do not hold what `content` has at their places."""
    return sum(
        peer.buffer[start : start + BLOCK_BYTES] != content[start : start + BLOCK_BYTES]
        for start in range(0, len(content), BLOCK_BYTES)
    )


def freeze_in_the_middle(frozen: Peer, decode: Peer) -> int:
    """Stops an agent as soon as some blocks have come; its process id."""
    firsts = range(0, len(decode.buffer), 16 * BLOCK_BYTES)
    wait_until(lambda: any(decode.buffer[first + 8] for first in firsts), "a block", pause_s=0)
    process_id = frozen.client.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGSTOP)
    return process_id


@pytest.mark.parametrize(
    ("engine", "batch_s", "reason"),
    [
        ("nixl", BATCH_S, "late"),
        ("mooncake", BATCH_S, "late"),
        ("mooncake", 20.0, "failed"),  # which gives up after three seconds, and goes on writing
    ],
)
@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_prompts_node_that_thaws_writes_to_no_block_that_is_anothers_by_now(
    engine: str, batch_s: float, reason: str, is_fenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever loses patience first. The control ends the wait as well, but not the process that
    reads.
    """
    need_engine(engine, monkeypatch)
    with open_peers(engine, NUM_BLOCKS, BLOCK_BYTES, batch_s) as (prefill, decode):
        if not is_fenced:
            monkeypatch.setattr(decode.client, "restart", lambda: None)
        decode.land(1, range(NUM_BLOCKS))
        decode.offer(1, prefill.export(range(NUM_BLOCKS)))
        process_id = freeze_in_the_middle(prefill, decode)
        end = decode.wait_end()
        assert (end.has_landed, end.reason) == (False, reason)
        assert not decode.has_content_of(prefill, NUM_BLOCKS), "it was over before the freeze"
        canary = Random(2).randbytes(len(decode.buffer))
        decode.buffer[:] = canary
        os.kill(process_id, signal.SIGCONT)
        if not is_fenced:
            wait_until(lambda: count_changed(decode, canary) > 0, "the attack")
            return
        time.sleep(LATE_S)
        assert count_changed(decode, canary) == 0
        prefill.wait_ready()
        decode.wait_ready()
        ends = [decode.fetch(number, prefill, 16) for number in (2, 3)]
        assert ends[-1].has_landed, ends  # one may find the connection that the freeze has broken
        assert count_changed(prefill, canary) == NUM_BLOCKS, "the canary travels nowhere either"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_node_that_answers_and_thaws_after_its_lease_gets_nothing_of_anothers(
    engine: str, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter's blocks are another account's by then; the control checks no tags."""
    need_engine(engine, monkeypatch)
    if not is_checked:
        monkeypatch.setattr(Tagger, "fits", lambda *_: True)
    with open_peers(engine, NUM_BLOCKS, BLOCK_BYTES, batch_s=60.0) as (prefill, decode):
        decode.land(1, range(NUM_BLOCKS))
        decode.offer(1, prefill.export(range(NUM_BLOCKS)))
        process_id = freeze_in_the_middle(decode, decode)
        prefill.buffer[:] = Random(3).randbytes(len(prefill.buffer))
        os.kill(process_id, signal.SIGCONT)
        end = decode.wait_end()
        if is_checked:
            assert (end.has_landed, end.reason) == (False, "tags")
        else:
            assert end.has_landed, "the attack"
