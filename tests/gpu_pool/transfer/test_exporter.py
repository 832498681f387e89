"""What leaves of a prompt: in messages that can be read, and for as long as somebody may read."""

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import pytest

from contracts.ids import AccountId
from contracts.kv_transfer import MAX_CHUNK_BLOCKS, KvExported
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import KvDeparture
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.export import ChunkId, ExportedChunk
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import HostBlockId, HostMemory, KvGroup, KvGroupKind, SequenceId
from gpu_pool.transfer.exchange import create_exchange
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer.puller import MOST_BATCH_TIMES
from gpu_pool.transfer_settings import TransferSettings
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.transfer.export_bench import ExportBench
from tests.gpu_pool.transfer.peer import wait_until

NUM_BLOCKS = MAX_CHUNK_BLOCKS + 3
SEQUENCE = SequenceId(1)


def create_memory(num_blocks: int) -> list[HostMemory]:
    """Of blocks of one byte."""
    return [HostMemory(memoryview(bytearray(num_blocks)), 1)]


def test_more_blocks_than_a_message_describes_go_out_in_several() -> None:
    bench = ExportBench(create_memory(NUM_BLOCKS), 1)
    bench.export(SEQUENCE, "a", 0, NUM_BLOCKS)
    bench.exporter.end(SEQUENCE, is_whole=True)
    bench.exporter.close()
    bench.exporter.poll()
    places: list[int] = []
    for _, told in bench.told:
        event = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=KvExported)
        places += [one.first + index for one in event.runs for index in range(len(one.tags))]
    assert places == list(range(NUM_BLOCKS))
    assert event.is_last


@pytest.mark.parametrize("may_be_read", [False, True])
@pytest.mark.parametrize("read_ms", [5000, 60_000])
def test_blocks_that_are_released_stay_for_the_reads_that_have_begun(
    read_ms: int, *, may_be_read: bool
) -> None:
    """A lease of a minute; never longer than that, and what is copied later is not kept."""
    bench = ExportBench(create_memory(2), 60_000, read_ms=read_ms)
    prefix = bench.begin(SEQUENCE, 2)
    bench.take(0, SEQUENCE, prefix, 0, 0)
    assert bench.exporter.poll() == []  # the control: leased
    bench.now_ms = 1000
    bench.exporter.release(SEQUENCE, may_be_read=may_be_read)
    if may_be_read:
        bench.now_ms = min(1000 + read_ms, 60_000) - 1
        assert bench.exporter.poll() == []
        bench.now_ms += 1
    assert bench.exporter.poll() == [ChunkId(0)]
    bench.take(1, SEQUENCE, prefix, 1, 1)
    assert bench.exporter.poll() == [ChunkId(1)]
    bench.exporter.close()


def test_orders_that_find_no_room_leave_no_leases() -> None:
    """Each step looks through all of them. The control has a block that may be being read."""
    bench = ExportBench(create_memory(2), 60_000)
    prefix = bench.begin(SEQUENCE, 1)
    bench.take(0, SEQUENCE, prefix, 0, 0)
    for number in range(2, 100):
        bench.begin(SequenceId(number), 1)
        bench.exporter.end(SequenceId(number), is_whole=False)
    bench.exporter.end(SEQUENCE, is_whole=False)
    assert list(bench.exporter._leases) == [SEQUENCE]
    assert bench.exporter.poll() == []
    bench.now_ms = 60_000
    assert bench.exporter.poll() == [ChunkId(0)]
    bench.exporter.close()


def read_wall_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("step_s", [-3600, 3600])
@pytest.mark.parametrize("clock_ms", [read_node_ms, read_wall_ms])
def test_a_step_of_the_wall_clock_ends_and_extends_no_lease(
    clock_ms: Callable[[], int], step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of 50 ms beside one of a minute; by the wall clock, the control, it goes wrong."""
    wall_ns = time.time_ns
    bench = ExportBench(create_memory(2), 60_000, clock_ms=clock_ms)
    for place, left_ms in ((0, 50), (1, 60_000)):
        bench.deadline_ms = clock_ms() + left_ms
        bench.export(SequenceId(place), "a", place, 1)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + step_s * 1_000_000_000)
    time.sleep(0.06)
    ended = bench.exporter.poll()
    bench.exporter.close()
    assert (len(ended) == 1) == (clock_ms is read_node_ms)


@pytest.mark.parametrize("batch_s", [0.5, 3.0])
def test_a_read_is_granted_all_the_time_that_its_readers_agent_may_take(batch_s: float) -> None:
    """Of a node whose settings are the same."""
    handle = os.memfd_create("blocks")
    os.ftruncate(handle, 64)
    memory = [HostMemory(memoryview(mmap.mmap(handle, 64)), 16, handle)]
    settings = TransferSettings(engine="memory", batch_s=batch_s)
    now_ms = 0
    exchange = create_exchange(settings, create_double_info(), memory, lambda: now_ms, lambda: None)
    assert exchange is not None
    try:
        wait_until(lambda: exchange.client.ready is not None, "an agent")
        exporter = exchange.sink
        exporter.expect(SEQUENCE, KvDeparture(0, 1, deadline_ms=60_000))
        prefix = Prefix(AccountId("a" * 32), bytes(32), (bytes(32),))
        assert exporter.find(SEQUENCE, prefix) is not None
        run = HostRun(0, 0, (HostBlockId(0),), prefix.keys)
        exporter.take(ExportedChunk(ChunkId(1), SEQUENCE, prefix, (run,)))
        exporter.release(SEQUENCE, may_be_read=True)
        now_ms = int(MOST_BATCH_TIMES * batch_s * 1000)
        assert exporter.poll() == []
        now_ms += 1000  # for the words that end it
        assert exporter.poll() == [ChunkId(1)]
    finally:
        exchange.close()
        os.close(handle)


@pytest.mark.parametrize(
    ("is_released", "may_be_read"), [(False, False), (True, True), (True, False)]
)
def test_prompts_that_nobody_waits_for_leave_room_for_others(
    *, is_released: bool, may_be_read: bool
) -> None:
    """One account's, each of ten blocks that are in the cache, in a memory of sixty: half of that
    is for other accounts in any case.
    """
    group = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=60)
    bench = ExportBench(create_memory(60), 25_000, read_ms=5000)
    info = create_double_info(kv_groups=(group,), num_blocks=256)
    settings = SchedulerSettings(max_batch_tokens=512)
    rig = EngineRig(settings, info, create_carriers=lambda _: Carriers((), (bench.exporter,)))
    for number in range(1, 4):
        bench.expect(SequenceId(number), 10)
        output = rig.add(create_request(number, list(range(1, 42)), max_tokens=5))
        assert not output.error_codes
        rig.step()
        if is_released:
            bench.exporter.release(SequenceId(number), may_be_read=may_be_read)
        rig.abort(number)
        rig.run()

    def ask(number: int, account: str) -> list[str]:
        bench.expect(SequenceId(number), 5)
        prompt, account_id = list(range(300, 323)), AccountId(account * 32)
        request = create_request(number, prompt, max_tokens=1, account_id=account_id, salt=b"B")
        return rig.add(request).error_codes

    assert ask(7, "b") == []
    assert ask(8, "a") == ([] if is_released and not may_be_read else ["pool_saturated"])
    bench.now_ms = 5000
    assert ask(9, "a") == ([] if is_released else ["pool_saturated"])
    rig.run()
    bench.exporter.close()


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
    view = SlowView(memory)
    bench = ExportBench(memory, 1000, view)
    bench.export(SEQUENCE, "a", 0, 1)
    assert view.is_reading.wait(60)
    bench.now_ms = 1000 if is_over else 999
    assert bench.exporter.poll() == ([ChunkId(SEQUENCE)] if is_over else [])
    content[:] = b"2"
    view.goes_on.set()
    bench.exporter.close()
    bench.exporter.poll()
    assert len(bench.told) == (not is_over)
