"""Very many landings with cancels and faults: each ends once, rightly, and nothing grows.

The whole proof: `HEARTH_TEST_STORM_MOVES=100000`.
"""

import gc
import os
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest

from contracts.kv_transfer import TAG_BYTES, KvExported, KvRun
from gpu_pool.plan import SequenceId
from tests.gpu_pool.transfer.peer import Peer, need_engine, open_peers

NUM_MOVES: Final = int(os.environ.get("HEARTH_TEST_STORM_MOVES", "5000"))
NUM_AT_ONCE: Final = 16
PLACE_BLOCKS: Final = 4
BLOCK_BYTES: Final = 2048
CANCELS: Final = 0.2
FAULTS: Final = 0.05
MAX_GROWTH_BYTES: Final = 4 << 20
UNREADABLE: Final = {"memory": 0.5, "nixl": 0.5, "mooncake": 0.02}
"""Of the faults; over such a one Mooncake's agent is ended, which takes a second."""
OPEN_FILES: Final = {"memory": 0, "nixl": 0, "mooncake": 8}
"""By which they may differ: Mooncake opens connections as it has use for them, one for each of the
batches that it reads at once, and each has two ends.
"""
_NO_MEMORY: Final = 4096
"""An address at which no process has anything."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + NUM_MOVES // 50)]


def spoil(exported: KvExported, reason: str) -> KvExported:
    """A wrong tag (`tags`), or an address that cannot be read (`failed`)."""
    run = exported.runs[0]
    if reason == "tags":
        tags = (*run.tags[:-1], bytes(TAG_BYTES))
        spoilt = KvRun(run.group, run.first, run.addresses, tags)
    else:
        addresses = (_NO_MEMORY, *run.addresses[1:])
        spoilt = KvRun(run.group, run.first, addresses, run.tags)
    return msgspec.structs.replace(exported, runs=(spoilt,))


def measure(peers: tuple[Peer, Peer]) -> tuple[int, int]:
    """Open files and resident bytes of this process and both agents.

    What earlier tests left to the collector, such as the map of a peer, is none of theirs.
    """
    gc.collect()
    num_files = num_bytes = 0
    for process_id in (os.getpid(), *(peer.client.process_id for peer in peers)):
        folder = Path(f"/proc/{process_id}")
        num_files += len(list((folder / "fd").iterdir()))
        num_bytes += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return num_files, num_bytes


def run_landings(
    peers: tuple[Peer, Peer], random: Random, numbers: range, unreadable: float
) -> dict[str, int]:
    """Carries landings out, some at once, and checks each end; how many ended how."""
    prefill, decode = peers
    free = list(range(NUM_AT_ONCE))
    live: dict[int, tuple[int, list[int], tuple[str, ...]]] = {}
    """Place at the decode node, blocks at the other, how it may end."""
    counts: dict[str, int] = {}
    todo = iter(numbers)
    for _ in range(2 * len(numbers)):
        if free and (number := next(todo, None)) is not None:
            place = free.pop()
            count = random.randrange(1, PLACE_BLOCKS + 1)
            wanted = random.sample(range(prefill.num_blocks), count)
            exported = prefill.export(wanted)
            fault = ""
            if random.random() < FAULTS:
                fault = "failed" if random.random() < unreadable else "tags"
                exported = spoil(exported, fault)
            is_cancelled = random.random() < CANCELS
            live[number] = place, wanted, (fault, "late") if is_cancelled else (fault,)
            decode.land(number, range(place * PLACE_BLOCKS, place * PLACE_BLOCKS + count))
            decode.offer(number, exported)
            if is_cancelled:
                decode.puller.give_up(SequenceId(number), "late")
            if free:
                continue
        if not live:
            break
        end = decode.wait_end()
        place, wanted, reasons = live.pop(end.sequence_id)
        assert end.reason in reasons, "what befalls one landing is felt by no other"
        assert end.has_landed == (not end.reason)
        first = place * PLACE_BLOCKS
        for block_id, source in enumerate(wanted, first) if end.has_landed else ():
            assert read_block(decode, block_id) == read_block(prefill, source)
        free.append(place)
        reason = end.reason or "landed"
        counts[reason] = counts.get(reason, 0) + 1
    assert not live
    return counts


def read_block(peer: Peer, block_id: int) -> bytes:
    """What a block holds."""
    return bytes(peer.buffer[block_id * BLOCK_BYTES : (block_id + 1) * BLOCK_BYTES])


@pytest.mark.parametrize("engine", ["memory", "nixl", "mooncake"])
def test_memory_and_open_files_stay_as_they_are(engine: str) -> None:
    need_engine(engine)
    random = Random(4)
    with open_peers(engine, NUM_AT_ONCE * PLACE_BLOCKS, BLOCK_BYTES) as peers:
        run_landings(peers, random, range(1000), UNREADABLE[engine])
        peers[1].wait_ready()
        assert peers[1].fetch(-1, peers[0], PLACE_BLOCKS).has_landed
        num_files, num_bytes = measure(peers)
        counts = run_landings(peers, random, range(1000, 1000 + NUM_MOVES), UNREADABLE[engine])
        peers[1].wait_ready()
        assert peers[1].fetch(-2, peers[0], PLACE_BLOCKS).has_landed
        assert sum(counts.values()) == NUM_MOVES
        assert counts["landed"] > NUM_MOVES / 2
        assert counts["late"] > 0
        assert counts["tags"] > 0
        assert counts.get("failed") or NUM_MOVES * FAULTS * UNREADABLE[engine] < 10
        files_now, bytes_now = measure(peers)
        assert abs(files_now - num_files) <= OPEN_FILES[engine]
        assert bytes_now - num_bytes < MAX_GROWTH_BYTES
