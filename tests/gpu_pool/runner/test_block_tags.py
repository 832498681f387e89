"""The executor's own view of whose a block is: a sequence with a stolen block is not computed."""

from pathlib import Path

import pytest

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.plan import (
    BlockId,
    ForwardPlan,
    ForwardResult,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.plan_driver import GREEDY
from tests.gpu_pool.tiny_llama import write_tiny_llama

FIRST, SECOND = SequenceId(1), SequenceId(2)
PROMPT = tuple(range(1, 21))


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """A worker over a tiny random checkpoint."""
    write_tiny_llama(tmp_path)
    settings = WorkerSettings(
        model_dir=tmp_path, dtype=DtypeChoice.FLOAT32, num_blocks=8, num_threads=1
    )
    executor = create_executor(settings)
    assert isinstance(executor, Worker)
    return executor


def run(worker: Worker, step: int, *work: ScheduledSequence, new: int = 0) -> ForwardResult:
    """The result of a plan; `new` is the sequence it begins."""
    begun = (NewSequence(SequenceId(new), PROMPT, len(PROMPT), 0, GREEDY),) if new else ()
    worker.submit(ForwardPlan(step, (), begun, work))
    return worker.collect()


def work(
    sequence_id: SequenceId, num_tokens: int, blocks: tuple[int, ...] = (), tag: int = 1
) -> ScheduledSequence:
    """Work that samples; its new blocks come under `tag`."""
    ids = tuple(BlockId(block) for block in blocks)
    tags = (tag,) * len(ids)
    return ScheduledSequence(sequence_id, num_tokens, (ids,), True, (tags,))


def test_a_sequence_whose_block_was_given_away_fails_and_the_new_owner_is_served(
    worker: Worker,
) -> None:
    (alone,) = run(worker, 0, work(FIRST, 20, (2, 3)), new=1).sampled
    result = run(worker, 1, work(FIRST, 1), work(SECOND, 20, (3, 4), tag=2), new=2)
    assert result.failed == (FIRST,)
    assert [sampled.sequence_id for sampled in result.sampled] == [SECOND]
    assert result.sampled[0].token_ids == alone.token_ids  # the same prompt, computed cleanly
    assert run(worker, 2, work(FIRST, 1)).failed == (FIRST,)  # planned before that was known


def test_two_sequences_that_share_a_block_under_one_tag_are_both_served(worker: Worker) -> None:
    """The control of the test above."""
    run(worker, 0, work(FIRST, 20, (2, 3)), new=1)
    shared = ScheduledSequence(SECOND, 4, ((BlockId(2), BlockId(5)),), True, ((1, 1),))
    new = NewSequence(SECOND, PROMPT, len(PROMPT), 16, GREEDY)
    worker.submit(ForwardPlan(1, (), (new,), (work(FIRST, 1), shared)))
    result = worker.collect()
    assert result.failed == ()
    assert len(result.sampled) == 2


def test_a_block_under_an_older_tag_than_it_has_is_not_read(worker: Worker) -> None:
    run(worker, 0, work(FIRST, 20, (2, 3), tag=7), new=1)
    result = run(worker, 1, work(SECOND, 20, (3, 4), tag=6), new=2)
    assert result.failed == (SECOND,)


@pytest.mark.parametrize("tags", [(3, 4), (4, 3)])
def test_a_block_that_one_table_is_given_twice_at_once_is_not_read(
    worker: Worker, tags: tuple[int, int]
) -> None:
    twice = ScheduledSequence(FIRST, 20, ((BlockId(2), BlockId(2)),), True, (tags,))
    assert run(worker, 0, twice, new=1).failed == (FIRST,)


def test_a_block_that_comes_back_to_its_table_or_goes_to_a_neighbour_leaves_no_suspicion(
    worker: Worker,
) -> None:
    """Windows drop blocks; who drops one may be told later than who gets it."""
    (known,) = worker._runner._tags  # type: ignore[union-attr]
    run(worker, 0, work(FIRST, 20, (2, 3)), new=1)
    back = ScheduledSequence(FIRST, 1, ((BlockId(2),),), True, ((2,),), (1,))
    assert run(worker, 1, back).failed == ()
    assert not known.is_suspect
    gone = ScheduledSequence(FIRST, 1, ((),), True, ((),), (2,))
    assert run(worker, 2, work(SECOND, 20, (3, 4), tag=3), gone, new=2).failed == ()
    assert not known.is_suspect
    assert known._num_holders.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
    assert run(worker, 3, work(FIRST, 1), work(SECOND, 1, (2,), tag=4)).failed == (FIRST,)


def test_blocks_are_zeroed_when_a_plan_says_so(worker: Worker) -> None:
    run(worker, 0, work(FIRST, 20, (2, 3)), new=1)
    (group,) = worker._runner._groups  # type: ignore[union-attr]
    assert group.cache.blocks[2].abs().sum() > 0
    worker.submit(ForwardPlan(1, (FIRST,), (), (), ((BlockId(2),),)))
    assert worker.collect().sampled == ()
    assert group.cache.blocks[2].abs().sum() == 0
    assert group.cache.blocks[3].abs().sum() > 0  # the control
