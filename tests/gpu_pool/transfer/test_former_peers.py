"""Peers come and go under ever new names: NIXL does not keep all of them.

With the real engine, in a process of its own: its threads outlive it.
"""

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.gpu_pool.transfer.peer import need_engine

MOST: Final = 3
PROGRAM: Final = """
import ctypes, json, os, sys, time
from gpu_pool.transfer import nixl_engine
from gpu_pool.transfer.transfer_engine import Piece, ReadState, Region

nixl_engine.MAX_CONNECTIONS = int(sys.argv[1])
SIZE, NUM_PEERS = 1 << 20, 8
buffers = [ctypes.create_string_buffer(bytes([number]) * SIZE, SIZE) for number in range(10)]
regions = [Region(ctypes.addressof(buffer), SIZE) for buffer in buffers]
reader = nixl_engine.NixlEngine("reader", [regions[0], regions[-1]])
names = [f"peer {number}" for number in range(NUM_PEERS)]
peers = [nixl_engine.NixlEngine(name, [region]) for name, region in zip(names, regions[1:-1])]


def start(number, target=regions[0]):
    piece = Piece(target.address, regions[number + 1].address, SIZE)
    return reader.read(names[number], peers[number].describe(), [piece])


def finish(read, number):
    until_s = time.monotonic() + 30
    while (state := read.poll()) is ReadState.PENDING:
        assert time.monotonic() < until_s, "a read that does not end"
    return state is ReadState.DONE and buffers[0].raw == buffers[number + 1].raw


def list_known():
    nothing = reader._api.nixlXferDList(reader._api.DRAM_SEG, [])
    known = []
    for number, name in enumerate(names):
        try:
            status = reader._agent.checkRemoteMD(name, nothing)
        except Exception:
            status = None
        known += [number] if status == reader._api.NIXL_SUCCESS else []
    return known


# nobody has heard of its end: it is under way for all that is known, and may be
busy = start(0, regions[-1])
have_come = [finish(start(number), number) for number in range(1, NUM_PEERS)]
known = list_known()
busy.poll()
while busy.poll() is ReadState.PENDING:
    pass
again = [finish(start(number), number) for number in (1, 0)]
json.dump({"have_come": have_come, "known": known, "again": again}, sys.stdout)
sys.stdout.flush()
os._exit(0)
"""


def read_from_eight(most: int) -> dict[str, Any]:
    """One reader and eight peers, from the first of which it reads all the time."""
    words = [sys.executable, "-c", PROGRAM, str(most)]
    ran = subprocess.run(words, capture_output=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout)


@pytest.mark.parametrize("most", [MOST, 128])
def test_no_more_peers_are_known_than_there_may_be(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is read from stays, and those that were used last; the others are found again.
    The control, with room for all, has all.
    """
    need_engine("nixl", monkeypatch)
    found = read_from_eight(most)
    assert found["have_come"] == [True] * 7
    assert found["known"] == ([0, 6, 7] if most == MOST else list(range(8)))
    assert found["again"] == [True, True]
