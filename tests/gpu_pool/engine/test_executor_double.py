"""The double refuses every plan that a real executor would answer with a wrong word or a crash."""

from dataclasses import replace

import pytest

from contracts.errors import InvariantBroken
from contracts.inference import SamplingParams
from gpu_pool.engine.double_tokens import predict_tokens
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.plan import (
    AdapterFile,
    BlockId,
    ForwardPlan,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)

PROMPT = (1, 2, 3, 4, 5, 6)


def new(
    sequence_id: int, token_ids: tuple[int, ...] = PROMPT, *, num_computed: int = 0
) -> NewSequence:
    return NewSequence(
        sequence_id=SequenceId(sequence_id),
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        num_computed_tokens=num_computed,
        sampling=SamplingParams(max_tokens=4, temperature=0.0, seed=0),
    )


def work(
    sequence_id: int, num_tokens: int, *block_ids: int, samples: bool = True
) -> ScheduledSequence:
    blocks = tuple(BlockId(block_id) for block_id in block_ids)
    return ScheduledSequence(SequenceId(sequence_id), num_tokens, (blocks,), samples)


def plan(
    step: int,
    *scheduled: ScheduledSequence,
    new: tuple[NewSequence, ...] = (),
    released: tuple[int, ...] = (),
) -> ForwardPlan:
    return ForwardPlan(step, tuple(SequenceId(i) for i in released), new, scheduled)


def create_double() -> ExecutorDouble:
    """A double that has computed the prompt of sequence 1 in blocks 0 and 1."""
    executor = ExecutorDouble(create_double_info())
    executor.submit(plan(0, work(1, 6, 0, 1), new=(new(1),)))
    executor.collect()
    return executor


def test_a_right_plan_yields_the_predicted_tokens() -> None:
    executor = create_double()
    executor.submit(plan(1, work(1, 1)))
    (sampled,) = executor.collect().sampled
    assert sampled.token_ids == predict_tokens(PROMPT, 2, vocab_size=1000)[1:]


def test_a_chunked_and_a_shared_prompt_yield_the_same_token_as_a_whole_one() -> None:
    executor = create_double()
    chunked, shared = new(2), new(3, num_computed=4)
    executor.submit(
        plan(1, work(2, 4, 2, 3, samples=False), work(3, 2, 0, 4), new=(chunked, shared))
    )
    (of_shared,) = executor.collect().sampled
    executor.submit(plan(2, work(2, 2)))
    (of_chunked,) = executor.collect().sampled
    expected = predict_tokens(PROMPT, 1, vocab_size=1000)
    assert of_shared.token_ids == of_chunked.token_ids == expected


OTHER = (9, 9, 9, 9, 9, 9)
WRONG_PLANS = {
    "a step out of order": plan(2, work(1, 1)),
    "no work": plan(1),
    "an unknown row": plan(1, work(7, 1)),
    "a row twice": plan(1, work(1, 1), work(1, 1)),
    "a second row for a sequence": plan(1, work(1, 6, 2, 3), new=(new(1),)),
    "a new row without work": plan(1, work(1, 1), new=(new(2),)),
    "the release of an unknown row": plan(1, work(1, 1), released=(7,)),
    "work after the release": plan(1, work(1, 1), released=(1,)),
    "tokens nobody has sampled": plan(1, work(1, 2)),
    "no token": plan(1, work(1, 0)),
    "no sample of the newest token": plan(1, work(1, 1, samples=False)),
    "a sample in the middle of a prompt": plan(1, work(2, 4, 2, 3), new=(new(2),)),
    "a block too many": plan(1, work(1, 1, 2)),
    "a block too few": plan(1, work(2, 6, 2), new=(new(2),)),
    "a block that does not exist": plan(1, work(2, 6, 2, 64), new=(new(2),)),
    "a block twice": plan(1, work(2, 6, 2, 2), new=(new(2),)),
    "a block of another sequence": plan(1, work(2, 6, 1, 2), new=(new(2),)),
    "one block for two new sequences": plan(
        1, work(2, 6, 2, 3), work(3, 6, 3, 4), new=(new(2), new(3))
    ),
    "a shared block with another history": plan(
        1, work(2, 2, 0, 2), new=(new(2, OTHER, num_computed=4),)
    ),
    "a shared block that was never written": plan(
        1, work(2, 2, 2, 3), new=(new(2, num_computed=4),)
    ),
    "a shared block that is not full": plan(1, work(2, 1, 0, 1), new=(new(2, num_computed=5),)),
    "nothing left to compute": plan(1, work(2, 0, 0, 2), new=(new(2, PROMPT[:4], num_computed=4),)),
    "no seed": plan(
        1, work(2, 6, 2, 3), new=(replace(new(2), sampling=SamplingParams(max_tokens=1)),)
    ),
    "blocks for a group that does not exist": plan(
        1, ScheduledSequence(SequenceId(1), 1, ((), ()), True)
    ),
}


@pytest.mark.parametrize("wrong", WRONG_PLANS.values(), ids=WRONG_PLANS)
def test_a_wrong_plan_is_refused(wrong: ForwardPlan) -> None:
    with pytest.raises(InvariantBroken):
        create_double().submit(wrong)


def test_what_a_former_owner_left_in_a_block_cannot_be_shared_once_it_was_reused() -> None:
    executor = create_double()
    executor.submit(plan(1, work(2, 6, 0, 1), new=(new(2, OTHER),), released=(1,)))
    executor.collect()
    with pytest.raises(InvariantBroken):
        executor.submit(plan(2, work(3, 2, 0, 2), new=(new(3, num_computed=4),)))


def test_no_more_plans_are_taken_than_may_be_in_flight() -> None:
    executor = create_double()
    executor.submit(plan(1, work(1, 1)))
    with pytest.raises(InvariantBroken):
        executor.submit(plan(2, work(1, 1)))


def test_a_result_that_nothing_was_submitted_for_is_refused() -> None:
    with pytest.raises(InvariantBroken):
        create_double().collect()


def test_the_device_breaks_at_the_step_it_was_told_to() -> None:
    executor = ExecutorDouble(create_double_info(), fails_at_step=0)
    executor.submit(plan(0, work(1, 6, 0, 1), new=(new(1),)))
    with pytest.raises(RuntimeError):
        executor.collect()


# -- adapters ------------------------------------------------------------------------------------

ADAPTER = AdapterFile(b"a" * 32, "/60", 1.0)


def load(executor: ExecutorDouble, adapter: AdapterFile) -> None:
    executor.load_adapter(adapter, lambda: None)
    assert [news.is_loaded for news in executor.poll_adapters()] == [True]


def test_an_adapter_changes_what_follows() -> None:
    executor = ExecutorDouble(create_double_info())
    load(executor, ADAPTER)
    executor.submit(plan(0, work(1, 6, 0, 1), new=(replace(new(1), adapter=ADAPTER),)))
    (sampled,) = executor.collect().sampled
    digest = ADAPTER.digest
    (expected,) = predict_tokens(PROMPT, 1, vocab_size=1000, adapter_digest=digest)
    assert sampled.token_ids == (expected,)
    assert (expected,) != predict_tokens(PROMPT, 1, vocab_size=1000)


def test_nothing_is_computed_with_an_adapter_that_is_not_there() -> None:
    executor = ExecutorDouble(create_double_info())
    first = plan(0, work(1, 6, 0, 1), new=(replace(new(1), adapter=ADAPTER),))
    with pytest.raises(InvariantBroken, match="not there"):
        executor.submit(first)
    dropped = ExecutorDouble(create_double_info())
    load(dropped, ADAPTER)
    dropped.submit(first)
    dropped.collect()
    dropped.drop_adapter(ADAPTER.digest)
    with pytest.raises(InvariantBroken, match="not there"):
        dropped.submit(plan(1, work(1, 1)))


def test_adapters_beyond_the_bound_or_twice_are_refused() -> None:
    executor = ExecutorDouble(create_double_info())
    load(executor, ADAPTER)
    with pytest.raises(InvariantBroken, match="twice"):
        executor.load_adapter(ADAPTER, lambda: None)
    with pytest.raises(InvariantBroken, match="room"):
        executor.load_adapter(AdapterFile(b"b" * 32, "/41", 1.0), lambda: None)
    with pytest.raises(InvariantBroken, match="not there"):
        executor.drop_adapter(b"c" * 32)
