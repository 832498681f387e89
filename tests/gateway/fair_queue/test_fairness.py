"""What one account does to another's waiting in front of the nodes: a bound on a simulated clock,
with the control in which the order of arrival lets it suffer.
"""

from collections import deque

import pytest

from contracts.fair_order import FairOrder
from tests.gateway.fair_queue.queue_words import (
    FULL_RUNNING,
    MAX_WAITING,
    Asked,
    FirstComeFirst,
    World,
    settle,
)

NUM_QUEUED = 1000
TICK_S = 1.0
"""In each the node ends as many requests as it computes at once."""
PROBE_EVERY = 10
NUM_PROBES = 12


async def measure_waits(create_order: type[FairOrder], *crowds: str) -> list[float]:
    """How long single requests of account `0` wait, while each of `crowds` has queued a share of
    the thousand.
    """
    world = World(create_order=create_order, max_requests=4 * NUM_QUEUED, max_wait_s=1e6)
    crowd = [
        world.ask(letter, max_wait_s=1e6)
        for _ in range(NUM_QUEUED // len(crowds))
        for letter in crowds
    ]
    await settle()
    assert world.queue.num_waiting == len(crowd)
    under_way: deque[Asked] = deque()
    waiting, probes = deque[Asked](crowd), list[Asked]()
    world.report("a", 0, 0)
    await settle()
    under_way.extend(one for one in waiting if one.is_placed)
    waiting = deque(one for one in waiting if not one.is_placed)
    for tick in range(NUM_PROBES * PROBE_EVERY):
        if tick % PROBE_EVERY == 0:
            probes.append(world.ask("0", max_wait_s=1e6))
            waiting.append(probes[-1])
            await settle()
        world.now_s += TICK_S
        for _ in range(min(FULL_RUNNING, len(under_way))):
            world.fleet.release(under_way.popleft().plan)
        await settle()
        under_way.extend(one for one in waiting if one.is_placed)
        waiting = deque(one for one in waiting if not one.is_placed)
        assert len(under_way) <= FULL_RUNNING + MAX_WAITING
        num_running = min(FULL_RUNNING, len(under_way))
        world.report("a", len(under_way) - num_running, num_running)
        world.report("b")
    assert any(not one.task.done() for one in crowd), "the crowd was served before the end"
    ends = [one.waited_s if one.is_placed else float("inf") for one in probes]
    for one in crowd + probes:
        one.task.cancel()
    await settle()
    return ends


@pytest.mark.parametrize("crowds", ["1", "123", "123456789"])
async def test_whoever_has_nothing_waiting_waits_for_one_request_of_each_other_account(
    crowds: str,
) -> None:
    waits_s = await measure_waits(FairOrder, *crowds)
    # So many are taken out in a tick; what has been sent to the node is the node's own order.
    bound_s = (1 + len(crowds) // FULL_RUNNING) * TICK_S
    assert max(waits_s) <= bound_s, waits_s


async def test_in_the_order_of_arrival_it_would_wait_for_the_whole_crowd() -> None:
    waits_s = await measure_waits(FirstComeFirst, "1")
    assert min(waits_s) > 100 * TICK_S
