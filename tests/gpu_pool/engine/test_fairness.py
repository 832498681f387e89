"""What one account does to another's waiting: bounds on a simulated clock, with controls."""

from random import Random

import pytest

from contracts.fair_order import FairOrder
from contracts.ids import AccountId
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import SequenceId
from tests.gpu_pool.engine.simulated_time import STEP_MS, TOKEN_MS, Simulation, percentile

A, B, C = (AccountId(letter * 32) for letter in "abc")
SETTINGS = SchedulerSettings(
    max_batch_tokens=512,
    max_chunk_tokens=256,
    max_running=32,
    max_waiting=4000,
    max_account_waiting=4000,
)
NUM_QUEUED = 1000
LONGEST_STEP_MS = STEP_MS + TOKEN_MS * SETTINGS.max_batch_tokens
MAX_WAIT_MS = 3 * LONGEST_STEP_MS
"""The bound: whoever asks for less than its share starts within three steps."""


def measure_waits(crowd: AccountId, *, num_blocks: int, num_probes: int = 100) -> list[float]:
    """How long short requests of B wait for their start while `crowd` has a queue of long ones."""
    simulation = Simulation(SETTINGS, num_blocks)
    random = Random(5)
    for _ in range(NUM_QUEUED):
        simulation.add(crowd, random.randint(500, 1500), random.randint(100, 400))
    for _ in range(100):
        simulation.step()
    probes: list[int] = []
    for _ in range(num_probes):
        probes.append(simulation.add(B, random.randint(10, 60), random.randint(5, 20)))
        for _ in range(random.randint(1, 25)):
            simulation.step()
    for _ in range(100):
        simulation.step()
    times = [simulation.times[probe] for probe in probes]
    # Who has not started yet has waited at least until now.
    ends = [simulation.now_ms if t.started is None else t.started for t in times]
    return [end - t.added for t, end in zip(times, ends, strict=True)]


@pytest.mark.parametrize(("shortage", "num_blocks"), [("places", 1 << 14), ("blocks", 1200)])
def test_a_thousand_queued_long_requests_of_one_account_do_not_delay_another(
    shortage: str, num_blocks: int
) -> None:
    waits = measure_waits(A, num_blocks=num_blocks)
    assert percentile(waits, 0.99) <= MAX_WAIT_MS, shortage


def test_in_one_line_with_them_the_same_requests_wait_for_long() -> None:
    """The control: what the crowd's own account feels."""
    waits = measure_waits(B, num_blocks=1 << 14)
    assert percentile(waits, 0.5) > 20 * MAX_WAIT_MS


def test_backlogged_accounts_are_served_alike_whatever_they_queue() -> None:
    simulation = Simulation(SETTINGS, 1 << 14)
    for _ in range(300):
        simulation.add(A, 1000, 50)
    for _ in range(300):
        simulation.add(B, 100, 50)
    tokens = {A: 0, B: 0}
    for _ in range(400):
        plan = simulation.step()
        assert plan is not None
        for work in plan.scheduled:
            weight = 2 if work.num_tokens == 1 else 1
            tokens[simulation.times[work.sequence_id].account_id] += weight * work.num_tokens
    assert 0.8 < tokens[A] / tokens[B] < 1.25


def test_idling_earns_no_credit() -> None:
    fair = FairOrder()
    fair.join(A)
    fair.charge(A, 1000)
    fair.join(B)
    assert fair.read(B) == 1000
    fair.charge(B, 5)
    fair.leave(B)
    fair.join(B)  # and leaving for a moment pays nothing back
    assert fair.read(B) == 1005


def test_what_others_have_left_in_the_cache_delays_nobody() -> None:
    """Accounts have come one after the other and wait for nothing now; one answer is under way."""
    simulation = Simulation(SETTINGS, 240)
    under_way = simulation.add(A, 160, 1200)
    simulation.step()
    for letter in "cdefghijklmn":
        for _ in range(10):
            last = simulation.add(AccountId(letter * 32), 110, 2)
            while simulation.times[last].finished is None:
                simulation.step()
    probe = simulation.add(B, 1000, 5)
    for _ in range(3):
        simulation.step()
    assert simulation.times[probe].started is not None
    assert simulation.times[under_way].finished is None  # nor did that one have to end for it


def test_the_lower_priority_gives_its_place_to_the_higher() -> None:
    settings = SchedulerSettings(max_batch_tokens=512, max_running=4)
    simulation = Simulation(settings, 1 << 10)
    for _ in range(20):
        simulation.add(A, 100, 200)
    for _ in range(10):
        simulation.step()
    urgent = simulation.add(A, 50, 10, priority=1)
    for _ in range(3):
        simulation.step()
    assert simulation.times[urgent].started is not None
    usual = simulation.add(A, 50, 10)
    for _ in range(3):
        simulation.step()
    assert simulation.times[usual].started is None  # the control


def test_an_account_with_one_huge_request_among_many_small_ones_is_served() -> None:
    """Nobody starves: what becomes free is kept for who is owed it."""
    simulation = Simulation(SETTINGS, 400)
    for _ in range(30):
        simulation.add(B, 200, 40)
    for _ in range(5):
        simulation.step()
    huge = simulation.add(A, 5000, 20)
    for _ in range(4000):
        simulation.step()
        if len(simulation.times) < 400:
            simulation.add(B, 200, 40)
    assert simulation.times[huge].finished is not None


def measure_beside_huge(*, is_given_up: bool) -> tuple[list[float], int]:
    """How long others' requests wait beside an account that always has one which needs nearly all
    blocks, and how many of those have started. Given up, each goes just before it would start.
    """
    simulation = Simulation(SETTINGS, 1200)
    random = Random(1)
    probes: list[int] = []
    num_started = 0
    huge = simulation.add(A, 1150 * 16, 1)
    for step in range(4000):
        if step % 12 == 0:
            account_id = AccountId(random.choice("bcde") * 32)
            length = random.choice([20, 50, 400])
            probes.append(simulation.add(account_id, random.randint(50, 300), length))
        simulation.step()
        has_started = simulation.times[huge].started is not None
        num_started += has_started
        could_start = is_given_up and simulation.scheduler.load.num_free_blocks >= 1140
        if has_started or could_start:
            simulation.scheduler.abort(SequenceId(huge))
            huge = simulation.add(A, 1150 * 16, 1)
    times = [simulation.times[probe] for probe in probes]
    ends = [simulation.now_ms if t.started is None else t.started for t in times]
    return [end - t.added for t, end in zip(times, ends, strict=True)], num_started


@pytest.mark.parametrize("is_given_up", [True, False])
def test_whoever_has_others_wait_until_there_is_room_for_it_pays_for_that(
    is_given_up: bool,
) -> None:
    """An account that never waits itself holds others up for its share of the time at most."""
    waits, num_started = measure_beside_huge(is_given_up=is_given_up)
    assert percentile(waits, 0.5) <= MAX_WAIT_MS
    assert percentile(waits, 0.9) > MAX_WAIT_MS  # the control: it does get its share
    assert is_given_up or num_started > 2


def test_three_accounts_share_places_when_each_has_more_than_enough_to_do() -> None:
    simulation = Simulation(SETTINGS, 1 << 14)
    for account_id in (A, B, C):
        for _ in range(100):
            simulation.add(account_id, 60, 300)
        for _ in range(20):
            simulation.step()
    for _ in range(60):
        plan = simulation.step()
    assert plan is not None
    owners = [simulation.times[work.sequence_id].account_id for work in plan.scheduled]
    assert all(8 <= owners.count(account_id) <= 14 for account_id in (A, B, C))
