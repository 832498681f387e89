"""Deadlines come in order, each once, and what is over takes no memory until it was due."""

import random

from contracts.inference import SamplingParams
from gpu_pool.engine.deadlines import Deadlines
from gpu_pool.engine.sequence import Sequence
from gpu_pool.kv.block import BlockTable
from gpu_pool.plan import SequenceId
from tests.gpu_pool.engine.engine_rig import ACCOUNT, EngineRig, create_request

HOUR_MS = 3_600_000


def create_sequence(sequence_id: int, deadline_ms: int) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(sequence_id),
        account_id=ACCOUNT,
        priority=0,
        arrival=sequence_id,
        deadline_ms=deadline_ms,
        reject_if_busy=False,
        sampling=SamplingParams(max_tokens=1, seed=0),
        max_tokens=1,
        token_ids=[1],
        num_prompt_tokens=1,
        table=BlockTable(b"", ACCOUNT, ()),
    )


def test_what_is_over_is_forgotten_long_before_it_was_due() -> None:
    deadlines = Deadlines()
    living = [create_sequence(number, HOUR_MS + number) for number in range(10)]
    for sequence in living:
        deadlines.add(sequence)
    most = 0
    for number in range(100, 10_100):
        short = create_sequence(number, HOUR_MS)
        deadlines.add(short)
        deadlines.remove(short)
        most = max(most, deadlines.num_kept)
    assert most == 21
    assert list(deadlines.pop_missed(2 * HOUR_MS)) == list(range(10))


def test_ends_in_any_order_leave_those_that_live() -> None:
    rng = random.Random(4)
    deadlines = Deadlines()
    living: dict[int, Sequence] = {}
    missed: list[int] = []
    for number in range(3000):
        living[number] = create_sequence(number, number + rng.randrange(200))
        deadlines.add(living[number])
        if living and rng.random() < 0.7:
            deadlines.remove(living.pop(rng.choice(list(living))))
        due = sorted(
            (one.deadline_ms, one.sequence_id)
            for one in living.values()
            if one.deadline_ms <= number
        )
        found = list(deadlines.pop_missed(number))
        assert found == [sequence_id for _, sequence_id in due]
        for sequence_id in found:
            deadlines.remove(living.pop(sequence_id))  # as the books do
        missed += found
        assert deadlines.num_kept <= 2 * len(living) + 1
    assert missed, "nobody was late"  # the control


def test_a_core_keeps_no_deadlines_of_answers_that_are_over() -> None:
    rig = EngineRig()
    for number in range(200):
        rig.add(create_request(number, [1, 2, 3], max_tokens=1, deadline_ms=HOUR_MS))
        rig.run()  # which checks the books
    assert len(rig.scheduler.books) == 0
    late = rig.add(create_request(999, [1, 2, 3], max_tokens=100, deadline_ms=5))
    rig.now_ms = 10
    rig.run()
    assert late.error_codes == ["deadline_exceeded"]
