"""Who is next: priority first, then arrival; a preempted sequence takes its old place."""

from contracts.inference import SamplingParams
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.waiting_queue import WaitingQueue
from gpu_pool.kv.block import BlockTable
from gpu_pool.plan import SequenceId
from tests.gpu_pool.engine.engine_rig import ACCOUNT, NEVER_UNIX_MS


def create_sequence(arrival: int, priority: int = 0) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(arrival),
        account_id=ACCOUNT,
        priority=priority,
        arrival=arrival,
        deadline_unix_ms=NEVER_UNIX_MS,
        reject_if_busy=False,
        sampling=SamplingParams(max_tokens=1, seed=0),
        max_tokens=1,
        token_ids=[1],
        num_prompt_tokens=1,
        table=BlockTable(root_key=b""),
    )


def drain(queue: WaitingQueue) -> list[int]:
    arrivals: list[int] = []
    while (sequence := queue.peek()) is not None:
        queue.remove(sequence)
        arrivals.append(sequence.arrival)
    assert len(queue) == 0
    return arrivals


def test_first_come_is_first_served_within_a_priority() -> None:
    queue = WaitingQueue()
    for arrival, priority in ((1, 0), (2, 1), (3, 0), (4, 1), (5, -1)):
        queue.push(create_sequence(arrival, priority))
    assert drain(queue) == [2, 4, 1, 3, 5]


def test_preempted_sequences_come_back_in_their_old_order() -> None:
    queue = WaitingQueue()
    queue.push(create_sequence(3))
    for arrival in (2, 1):  # the youngest gives way first
        queue.push_front(create_sequence(arrival))
    assert drain(queue) == [1, 2, 3]


def test_a_removed_sequence_leaves_the_others_in_order() -> None:
    queue = WaitingQueue()
    sequences = [create_sequence(arrival) for arrival in (1, 2, 3)]
    for sequence in sequences:
        queue.push(sequence)
    queue.remove(sequences[1])
    assert len(queue) == 2
    assert drain(queue) == [1, 3]
