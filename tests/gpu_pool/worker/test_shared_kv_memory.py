"""KV memory that models share comes page by page, and is really gone when it goes."""

from collections import defaultdict
from pathlib import Path

import pytest

from contracts.settings import SettingsError
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.messages import ClaimRoom, GrantRoom
from gpu_pool.engine.scheduler import Scheduler
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.worker.kv_slabs import cut_slabs
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import Worker, create_executor
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.tiny_llama import write_tiny_llama
from tests.gpu_pool.weights.resident import read_resident_bytes

KV_BYTES, OWN_BYTES = 24 << 20, 4 << 20
SHARED_BYTES = KV_BYTES - OWN_BYTES
NUM_TOKENS = 8


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    write_tiny_llama(tmp_path, num_hidden_layers=4, head_dim=64)
    settings = WorkerSettings(
        model_dir=tmp_path, num_threads=1, kv_bytes=KV_BYTES, kv_least_bytes=OWN_BYTES
    )
    return create_executor(settings)


def run(worker: Worker, scheduler: Scheduler, first_id: int = 0) -> dict[int, list[int]]:
    """The answers to prompts that fill the memory, whichever request asked."""
    tokens: dict[int, list[int]] = defaultdict(list)
    length = min(400, worker.info.context_window - NUM_TOKENS)
    count = worker.info.num_blocks * worker.info.block_size // (length + NUM_TOKENS)
    for number in range(count):
        prompt = [1 + (number * 31 + place * 7) % 200 for place in range(length)]
        scheduler.add(create_request(first_id + number, prompt, max_tokens=NUM_TOKENS))
    while scheduler.has_work:
        plan = scheduler.schedule(0)
        if plan is not None:
            worker.submit(plan)
            scheduler.update(worker.collect())
        output = scheduler.take_output()
        for told in output.tokens if output else ():
            tokens[told.sequence_id - first_id] += told.token_ids
    assert len(tokens) == count
    return tokens


def test_what_goes_is_gone_and_what_comes_back_computes_the_same(worker: Worker) -> None:
    info = worker.info
    limits = SchedulerSettings(max_running=256, max_batch_tokens=2048)
    scheduler = create_scheduler(limits, info, lambda: 1)
    assert info.kv_bytes < KV_BYTES / 2
    scheduler.take_room(GrantRoom(SHARED_BYTES), 0, is_asleep=False)
    expected = run(worker, scheduler)
    before = read_resident_bytes()
    scheduler.take_room(ClaimRoom(SHARED_BYTES), 0, is_asleep=False)
    assert scheduler.has_work
    run_chores(worker, scheduler)
    news = scheduler.take_room_news()
    assert news is not None
    assert news.given_bytes >= 0.75 * SHARED_BYTES  # the account's floor holds a slab
    assert before - read_resident_bytes() > 0.9 * news.given_bytes
    scheduler.take_room(GrantRoom(news.given_bytes), 0, is_asleep=False)
    assert run(worker, scheduler, first_id=1000) == expected
    worker.close()


def run_chores(worker: Worker, scheduler: Scheduler) -> None:
    """Steps without sequences."""
    while scheduler.has_work:
        plan = scheduler.schedule(0)
        assert plan is not None
        assert not plan.scheduled
        worker.submit(plan)
        scheduler.update(worker.collect())


def test_with_its_own_memory_alone_the_answers_are_the_same(worker: Worker) -> None:
    """The control, too: without a grant no more than that is ever touched."""
    limits = SchedulerSettings(max_running=256, max_batch_tokens=2048)
    scheduler = create_scheduler(limits, worker.info, lambda: 1)
    before = read_resident_bytes()
    run(worker, scheduler)
    assert read_resident_bytes() - before < KV_BYTES / 2
    worker.close()


def test_a_request_has_to_fit_into_what_is_always_there(worker: Worker) -> None:
    group = worker.info.kv_groups[0]
    assert group.slabs is not None
    own_tokens = group.slabs.num_own * group.slabs.blocks_each * worker.info.block_size
    assert worker.info.context_window <= own_tokens
    worker.close()


def test_no_block_of_its_own_is_said_at_the_start(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    settings = WorkerSettings(model_dir=tmp_path, kv_bytes=KV_BYTES, kv_least_bytes=100)
    with pytest.raises(SettingsError, match="kv_least_bytes"):
        create_executor(settings)


@pytest.mark.parametrize("block_bytes", [512, 4096, 6144, 98_304, 1_835_008])
@pytest.mark.parametrize("num_own", [1, 7, 300])
def test_slabs_are_whole_pages_and_no_more_than_there_is(block_bytes: int, num_own: int) -> None:
    slabs, count = cut_slabs(block_bytes, 1000, num_own)
    assert slabs.blocks_each * block_bytes % 4096 == 0
    assert count % slabs.blocks_each == 0
    assert num_own <= slabs.num_own * slabs.blocks_each <= count
    assert count <= max(1000, slabs.num_own * slabs.blocks_each)


def test_large_blocks_are_a_slab_each_though_their_ends_are_no_pages() -> None:
    slabs, count = cut_slabs(9_000_000, 1000, 7)
    assert (slabs.blocks_each, slabs.num_own, count) == (1, 7, 1000)
