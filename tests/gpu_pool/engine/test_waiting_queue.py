"""Lines by priority and account; the preempted take their old places; limits by count and size."""

import pytest

from contracts.errors import PoolSaturated
from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.waiting_queue import WaitingQueue
from gpu_pool.kv.block import BlockTable
from gpu_pool.plan import SequenceId
from tests.gpu_pool.engine.engine_rig import ACCOUNT, NEVER_MS

OTHER = AccountId("b" * 32)


def create_sequence(
    arrival: int, priority: int = 0, account_id: AccountId = ACCOUNT, num_tokens: int = 1
) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(arrival),
        account_id=account_id,
        priority=priority,
        arrival=arrival,
        deadline_ms=NEVER_MS,
        reject_if_busy=False,
        sampling=SamplingParams(max_tokens=1, seed=0),
        max_tokens=1,
        token_ids=[1] * num_tokens,
        num_prompt_tokens=1,
        table=BlockTable(b"", account_id, ()),
    )


def create_queue(**limits: int) -> WaitingQueue:
    return WaitingQueue(SchedulerSettings(**limits))


def list_line(queue: WaitingQueue, priority: int = 0) -> list[int]:
    return [sequence.arrival for sequence in queue.walk((priority, ACCOUNT))]


def test_first_come_is_first_served_within_a_line() -> None:
    queue = create_queue()
    for arrival, priority in ((1, 0), (2, 1), (3, 0), (4, 1), (5, -1)):
        queue.push(create_sequence(arrival, priority))
    queue.push(create_sequence(6, 1, OTHER))
    assert [list_line(queue, priority) for priority in (1, 0, -1)] == [[2, 4], [1, 3], [5]]
    assert len(queue.list_lines()) == 4


def test_preempted_sequences_come_back_in_their_old_order() -> None:
    queue = create_queue()
    queue.push(create_sequence(3))
    for arrival in (2, 1):  # the youngest gives way first
        queue.push_front(create_sequence(arrival))
    assert list_line(queue) == [1, 2, 3]


def test_a_removed_sequence_leaves_the_others_in_order() -> None:
    queue = create_queue()
    sequences = [create_sequence(arrival) for arrival in (1, 2, 3)]
    for sequence in sequences:
        queue.push(sequence)
    queue.remove(sequences[1])
    assert len(queue) == 2
    assert list_line(queue) == [1, 3]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_waiting": 2},
        {"max_account_waiting": 2},
        {"max_waiting_tokens": 25},
        {"max_account_waiting_tokens": 25},
    ],
)
def test_a_queue_is_full_by_count_or_tokens_of_all_or_of_one_account(
    limits: dict[str, int],
) -> None:
    queue = create_queue(**limits)
    queued: list[Sequence] = []
    for arrival in (1, 2):
        queued.append(create_sequence(arrival, num_tokens=10))
        queue.check_room(queued[-1], 0)
        queue.push(queued[-1])
    with pytest.raises(PoolSaturated):
        queue.check_room(create_sequence(3, num_tokens=10), 0)
    of_other = create_sequence(4, account_id=OTHER, num_tokens=10)
    if any("account" in name for name in limits):
        queue.check_room(of_other, 0)
    else:
        with pytest.raises(PoolSaturated):
            queue.check_room(of_other, 0)
    queued[0].token_ids.append(1)  # what it weighs is what it weighed when it came
    queue.remove(queued[0])
    queue.check_room(create_sequence(3, num_tokens=10), 0)


def test_a_prompt_longer_than_the_limit_is_served_when_nobody_else_waits() -> None:
    queue = create_queue(max_waiting_tokens=5, max_account_waiting_tokens=5)
    queue.check_room(create_sequence(1, num_tokens=100), 0)


def test_places_that_are_free_at_once_do_not_count() -> None:
    queue = create_queue(max_waiting=0, max_account_waiting=0)
    queue.check_room(create_sequence(1), 1)
    with pytest.raises(PoolSaturated):
        queue.check_room(create_sequence(1), 0)
