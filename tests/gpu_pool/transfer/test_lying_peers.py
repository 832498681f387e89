"""What a node says of its blocks and its agent harms no read from another node.

NIXL knows agents by the names that they give themselves, and adds address and length in 64 bits
before it looks whether they are within registered memory. With the real engine, which in the first
test is in a process of its own: its threads outlive it.
Read next: `contracts.kv_transfer` (the bound of addresses), `gpu_pool.transfer.nixl_engine`.
"""

import subprocess
import sys
from typing import Final

import msgspec
import pytest

from contracts.kv_transfer import KvExported
from tests.gpu_pool.transfer.peer import need_engine, open_peers, wait_until

pytestmark = pytest.mark.slow

NUM_BLOCKS: Final = 4
BLOCK_BYTES: Final = 64 * 1024
WRAPPED: Final = 2**64 - BLOCK_BYTES
PROGRAM: Final = """
import contextlib, ctypes, os, sys, time
from contracts.errors import TransferFailed
from gpu_pool.transfer import nixl_engine
from gpu_pool.transfer.transfer_engine import Piece, ReadState, Region

SIZE, NUM_PIECES = 1 << 18, 512
buffers = [ctypes.create_string_buffer(bytes([n]) * SIZE * NUM_PIECES) for n in range(3)]
regions = [Region(ctypes.addressof(buffer), SIZE * NUM_PIECES) for buffer in buffers]
names = ("reader", "honest.1", "liar.1")
reader, honest, liar = map(nixl_engine.NixlEngine, names, ([region] for region in regions))


def start(peer, agent, number, num_pieces):
    if sys.argv[1] == "believing":
        nixl_engine._find_name = lambda agent: peer
    own, other = regions[0].address, regions[number].address
    places = range(0, num_pieces * SIZE, SIZE)
    return reader.read(peer, agent, [Piece(own + at, other + at, SIZE) for at in places])


def finish(read):
    until_s = time.monotonic() + 30
    while (state := read.poll()) is ReadState.PENDING:
        assert time.monotonic() < until_s, "a read that does not end"
    return state is ReadState.DONE


assert finish(start("honest", honest.describe(), 1, 1)), "a connection"
busy = start("honest", honest.describe(), 1, NUM_PIECES)
with contextlib.suppress(TransferFailed):
    start("liar", honest.describe(), 2, 1)
has_come = finish(start("liar", liar.describe(), 2, 1))
print(has_come, finish(busy))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("way", "is_harmed"), [("doubting", False), ("believing", True)])
def test_who_bears_anothers_name_ends_no_read_from_that_one(
    way: str, is_harmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control takes every name for the peer's own."""
    need_engine("nixl", monkeypatch)
    words = [sys.executable, "-c", PROGRAM, way]
    ran = subprocess.run(words, capture_output=True, timeout=100, check=False, text=True)
    assert ran.stdout.split() == ["True", str(not is_harmed)], ran.stderr


def test_no_address_wraps_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control skips the wire: the node that is read from has lost its agent then."""
    need_engine("nixl", monkeypatch)
    with open_peers("nixl", NUM_BLOCKS, BLOCK_BYTES) as (prefill, decode):
        exported = prefill.export(range(NUM_BLOCKS))
        (run,) = exported.runs
        beyond = msgspec.structs.replace(run, addresses=(WRAPPED,) * NUM_BLOCKS)
        wrapped = msgspec.structs.replace(exported, runs=(beyond,))
        assert decode.fetch(1, prefill, NUM_BLOCKS).has_landed
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(wrapped), type=KvExported)

        process_id = prefill.client.process_id
        decode.land(2, range(NUM_BLOCKS))
        decode.offer(2, wrapped)
        assert not decode.wait_end().has_landed
        wait_until(lambda: prefill.client.process_id != process_id, "the attack")
