"""What leaves of a very long prompt is described in messages that can be read."""

import queue
import threading
from collections.abc import Sequence

import msgspec
import pytest

from contracts.ids import AccountId
from contracts.kv_transfer import MAX_CHUNK_BLOCKS, KvExported, TransferEvent
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import KvDeparture
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.export import ChunkId, ExportedChunk
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import HostBlockId, HostMemory, KvGroup, KvGroupKind, SequenceId
from gpu_pool.settings import TransferSettings
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.agent_words import AgentReady
from gpu_pool.transfer.exporter import Exporter
from gpu_pool.transfer.host_view import HostView
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request

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


@pytest.mark.parametrize("within_ms", [0, 5000, 90_000])
def test_blocks_that_are_released_stay_for_the_reads_that_have_begun(within_ms: int) -> None:
    """A lease of a minute; never longer than that, and what is copied later is not kept."""
    memory = [HostMemory(memoryview(bytes(2)), 1)]
    client = AgentClient(TransferSettings(engine="memory"), "core", memory)
    client.ready = AgentReady(b"agent", (0,))
    now_unix_ms = [1000]
    exporter = Exporter(
        "life", client, HostView(memory), lambda: now_unix_ms[0], lambda *_: None, lambda: None
    )
    prefix = Prefix(AccountId("a" * 32), bytes(32), (bytes(32),) * 2)
    first, second = (
        ExportedChunk(
            ChunkId(index),
            SEQUENCE,
            prefix,
            (HostRun(0, index, (HostBlockId(index),), (bytes(32),)),),
        )
        for index in range(2)
    )
    exporter.expect(SEQUENCE, KvDeparture(0, 2, 61_000))
    assert exporter.find(SEQUENCE, prefix) is not None
    exporter.take(first)
    assert exporter.poll() == []  # the control: leased
    exporter.release(SEQUENCE, within_ms)
    if within_ms:
        now_unix_ms[0] += min(within_ms, 60_000) - 1
        assert exporter.poll() == []
        now_unix_ms[0] += 1
    assert exporter.poll() == [ChunkId(0)]
    exporter.take(second)
    assert exporter.poll() == [ChunkId(1)]
    exporter.close()


@pytest.mark.parametrize(("within_ms", "has_room"), [(None, False), (5000, False), (0, True)])
def test_prompts_that_nobody_waits_for_leave_room_for_those_of_others(
    within_ms: int | None, has_room: bool
) -> None:
    """One account's, each of ten blocks that are in the cache, in a memory of sixty."""
    group = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=60)
    memory = [HostMemory(memoryview(bytearray(60)), 1)]
    client = AgentClient(TransferSettings(engine="memory"), "core", memory)
    client.ready = AgentReady(b"agent", (0,))
    now_unix_ms = [0]
    exporter = Exporter(
        "life", client, HostView(memory), lambda: now_unix_ms[0], lambda *_: None, lambda: None
    )
    info = create_double_info(kv_groups=(group,), num_blocks=256)
    settings = SchedulerSettings(max_batch_tokens=512)
    rig = EngineRig(settings, info, create_carriers=lambda _: Carriers((), (exporter,)))
    for number in range(1, 7):
        exporter.expect(SequenceId(number), KvDeparture(0, 10, 25_000))
        output = rig.add(create_request(number, list(range(1, 42)), max_tokens=5))
        assert not output.error_codes
        rig.step()
        if within_ms is not None:
            exporter.release(SequenceId(number), within_ms)
        rig.abort(number)
        rig.run()
    departure = KvDeparture(0, 5, 25_000)
    other = AccountId("b" * 32), list(range(300, 323))
    exporter.expect(SequenceId(8), departure)
    output = rig.add(create_request(8, other[1], max_tokens=1, account_id=other[0], salt=b"B"))
    assert output.error_codes == ([] if has_room else ["pool_saturated"])
    now_unix_ms[0] = within_ms or 0
    exporter.expect(SequenceId(9), departure)
    output = rig.add(create_request(9, other[1], max_tokens=1, account_id=other[0], salt=b"B"))
    assert output.error_codes == (["pool_saturated"] if within_ms is None else [])
    rig.run()
    exporter.close()


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
