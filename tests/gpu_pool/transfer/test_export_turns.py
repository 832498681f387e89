"""What an account exports, or has left behind, holds up no other account's hand-over for long."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from contracts.kv_transfer import KvExported, KvGaveUp, TransferEvent
from gpu_pool.kv.export import ChunkId
from gpu_pool.plan import HostBlockId, HostMemory, SequenceId
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer.turns import TURN_BYTES
from tests.gpu_pool.transfer.export_bench import ExportBench

PATIENCE_S: Final = 60.0
BLOCK_BYTES: Final = TURN_BYTES // 4
NUM_BLOCKS: Final = 64
"""Of a long prompt: sixteen turns."""
LEASE_END_MS: Final = 1000
LONG, OTHER = SequenceId(1), SequenceId(2)


class HeldView(HostView):
    """Every block has the same content; the first one is not seen before the test says so."""

    def __init__(self, memory: list[HostMemory]) -> None:
        super().__init__(memory)
        self.seen: list[HostBlockId] = []
        self.is_reached = threading.Event()
        self.goes_on = threading.Event()

    def get_bytes(self, group: int, host_id: HostBlockId) -> memoryview:
        self.seen.append(host_id)
        self.is_reached.set()
        assert self.goes_on.wait(PATIENCE_S)
        return super().get_bytes(group, HostBlockId(0))


class Bench(ExportBench):
    """An exporter whose thread is held at the first block."""

    def __init__(self) -> None:
        memory = [HostMemory(memoryview(bytearray(BLOCK_BYTES)), BLOCK_BYTES)]
        self.view = HeldView(memory)
        super().__init__(memory, LEASE_END_MS, self.view)

    def finish(self) -> None:
        """Lets the thread do all that it has to."""
        self.view.goes_on.set()
        self.exporter.close()
        self.exporter.poll()

    def tell_of(self, sequence_id: SequenceId) -> list[TransferEvent]:
        """What the gateway was told of a sequence."""
        return [event for told, event in self.told if told == sequence_id]


@contextmanager
def open_bench() -> Iterator[Bench]:
    """One that exports a long prompt."""
    bench = Bench()
    try:
        bench.export(LONG, "a", 0, NUM_BLOCKS)
        assert bench.view.is_reached.wait(PATIENCE_S)
        yield bench
    finally:
        bench.view.goes_on.set()
        bench.exporter.close()


@pytest.mark.parametrize("account", ["a", "b"])
def test_another_account_waits_for_one_turn_and_the_same_one_for_what_it_asked_for_before(
    account: str,
) -> None:
    with open_bench() as bench:
        bench.export(OTHER, account, NUM_BLOCKS, 1)
        for sequence_id in (LONG, OTHER):
            bench.exporter.end(sequence_id, is_whole=True)
        bench.finish()
        is_same = account == "a"
        place = bench.view.seen.index(HostBlockId(NUM_BLOCKS))
        assert place == (NUM_BLOCKS if is_same else TURN_BYTES // BLOCK_BYTES)
        for sequence_id in (LONG, OTHER):
            exported, last = bench.tell_of(sequence_id)
            assert isinstance(exported, KvExported)
            assert isinstance(last, KvExported)
            assert (exported.is_last, last.is_last) == (False, True)


def let_the_lease_run_out(bench: Bench) -> None:
    """Which nobody has noticed yet."""
    bench.now_ms = LEASE_END_MS


ENDS: Final[dict[str, Callable[[Bench], None]]] = {
    "forgotten": lambda bench: bench.exporter.forget(LONG),
    "released": lambda bench: bench.exporter.release(LONG),
    "not whole": lambda bench: bench.exporter.end(LONG, is_whole=False),
    "lease over": let_the_lease_run_out,
}


@pytest.mark.parametrize("how", [*ENDS, "wanted"])
def test_no_tags_are_made_of_what_nobody_wants_any_more(how: str) -> None:
    """But for the block at which that was found; the control is wanted, and made as a whole."""
    with open_bench() as bench:
        if how in ENDS:
            ENDS[how](bench)
        bench.exporter.end(LONG, is_whole=True)
        bench.finish()
        told = bench.tell_of(LONG)
        assert len(bench.view.seen) == (NUM_BLOCKS if how == "wanted" else 1)
        assert [type(event) for event in told] == (
            [KvExported, KvExported] if how == "wanted" else [KvGaveUp]
        )


def test_blocks_that_are_forgotten_stay_until_their_lease_is_over() -> None:
    """The other node may be reading those that it has heard of."""
    with open_bench() as bench:
        bench.exporter.forget(LONG)
        assert bench.exporter.poll() == []
        bench.now_ms = LEASE_END_MS - 1
        assert bench.exporter.poll() == []
        bench.now_ms = LEASE_END_MS
        assert bench.exporter.poll() == [ChunkId(LONG)]
