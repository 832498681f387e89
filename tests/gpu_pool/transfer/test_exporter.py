"""What leaves of a very long prompt is described in messages that can be read."""

import queue
import threading
from collections.abc import Sequence

import msgspec
import pytest

from contracts.ids import AccountId
from contracts.kv_transfer import MAX_CHUNK_BLOCKS, KvExported, TransferEvent
from gpu_pool.engine.messages import KvDeparture
from gpu_pool.kv.export import ChunkId, ExportedChunk
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import HostBlockId, HostMemory, SequenceId
from gpu_pool.settings import TransferSettings
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.agent_words import AgentReady
from gpu_pool.transfer.exporter import Exporter
from gpu_pool.transfer.host_view import HostView

NUM_BLOCKS = MAX_CHUNK_BLOCKS + 3
SEQUENCE = SequenceId(1)


def test_more_blocks_than_a_message_describes_go_out_in_several() -> None:
    memory = [HostMemory(memoryview(bytes(NUM_BLOCKS)), 1)]
    client = AgentClient(TransferSettings(engine="memory"), "core", memory)
    client.ready = AgentReady(b"agent", (0,))
    told: queue.Queue[TransferEvent] = queue.Queue()
    exporter = Exporter(
        "life", client, HostView(memory), lambda: 0, lambda _, event: told.put(event), lambda: None
    )
    keys = (bytes(32),) * NUM_BLOCKS
    prefix = Prefix(AccountId("a" * 32), bytes(32), keys)
    run = HostRun(0, 0, tuple(map(HostBlockId, range(NUM_BLOCKS))), keys)
    exporter.expect(SEQUENCE, KvDeparture(0, NUM_BLOCKS, 1))
    assert exporter.find(SEQUENCE, prefix) is not None
    exporter.take(ExportedChunk(ChunkId(1), SEQUENCE, prefix, (run,)))
    exporter.end(SEQUENCE, is_whole=True)
    exporter.close()
    exporter.poll()
    places: list[int] = []
    while not told.empty():
        event = msgspec.msgpack.decode(msgspec.msgpack.encode(told.get()), type=KvExported)
        places += [one.first + index for one in event.runs for index in range(len(one.tags))]
    assert places == list(range(NUM_BLOCKS))
    assert event.is_last


class SlowView(HostView):
    """Lets the test do something while a block is being read."""

    def __init__(self, memory: Sequence[HostMemory]) -> None:
        super().__init__(memory)
        self.is_reading = threading.Event()
        self.goes_on = threading.Event()

    def get_bytes(self, group: int, host_id: HostBlockId) -> memoryview:
        self.is_reading.set()
        assert self.goes_on.wait(60)
        return super().get_bytes(group, host_id)


@pytest.mark.parametrize("is_over", [False, True])
def test_no_tag_proves_what_others_write_to_a_block_whose_lease_is_over(is_over: bool) -> None:
    """As after a jump of the clock, or in a process that was frozen in between."""
    content = bytearray(b"1")
    memory = [HostMemory(memoryview(content), 1)]
    client = AgentClient(TransferSettings(engine="memory"), "core", memory)
    client.ready = AgentReady(b"agent", (0,))
    view, now_unix_ms, told = SlowView(memory), [0], list[TransferEvent]()
    exporter = Exporter(
        "life", client, view, lambda: now_unix_ms[0], lambda _, e: told.append(e), lambda: None
    )
    prefix = Prefix(AccountId("a" * 32), bytes(32), (bytes(32),))
    exporter.expect(SEQUENCE, KvDeparture(0, 1, 1000))
    assert exporter.find(SEQUENCE, prefix) is not None
    run = HostRun(0, 0, (HostBlockId(0),), prefix.keys)
    exporter.take(ExportedChunk(ChunkId(1), SEQUENCE, prefix, (run,)))
    assert view.is_reading.wait(60)
    now_unix_ms[0] = 1000 if is_over else 999
    assert exporter.poll() == ([ChunkId(1)] if is_over else [])
    content[:] = b"2"
    view.goes_on.set()
    exporter.close()
    exporter.poll()
    assert len(told) == (not is_over)
