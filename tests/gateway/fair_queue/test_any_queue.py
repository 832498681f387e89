"""Whatever comes, goes or fails: bounds hold, the law holds, and no room is left unused."""

import asyncio
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.errors import CapacityError, PoolSaturated
from contracts.ids import NodeId
from gateway.fair_queue.crowd import Crowd, CrowdBounds
from gateway.fair_queue.waiter import Waiter
from gateway.routing.route_plan import RouteNeed
from tests.gateway.fair_queue.queue_words import (
    MAX_WAITING,
    Asked,
    World,
    list_allowed,
    name_account,
    settle,
)
from tests.gateway.routing.fleet_words import MODEL

REGIONS = ((), ("weur",), ("enam",), ("weur", "enam"))
BOUNDS = CrowdBounds(max_requests=6, max_tokens=1000, max_bytes=600)
NEWCOMERS = st.lists(
    st.tuples(
        st.sampled_from("123"),
        st.sampled_from([-1000, 0, 0, 1]),
        st.integers(1, 700),
        st.integers(1, 400),
    ),
    max_size=40,
)


def create_waiter(letter: str, priority: int, num_tokens: int, num_bytes: int) -> Waiter:
    """A request that would wait."""
    need = RouteNeed(MODEL, None)
    return Waiter(need, name_account(letter), priority, num_tokens, num_bytes, 0.0, 1.0)


@given(newcomers=NEWCOMERS)
def test_bounds_hold_and_only_who_holds_more_or_matters_less_gives_way(
    newcomers: list[tuple[str, int, int, int]],
) -> None:
    crowd, inside = Crowd(BOUNDS), list[Waiter]()

    def measure(account: Waiter, *more: Waiter) -> int:
        return sum(
            BOUNDS.measure(one)
            for one in (*inside, *more)
            if (one.account_id, one.priority) == (account.account_id, account.priority)
        )

    for facts in newcomers:
        newcomer = create_waiter(*facts)
        displaced = crowd.find_room(newcomer)
        own = measure(newcomer, newcomer)
        assert [crowd.num_requests, crowd.num_tokens] == [
            len(inside),
            sum(one.num_tokens for one in inside),
        ]
        if displaced is None:
            assert inside, "an empty queue has room for anybody"
            lowest = min(one.priority for one in inside)
            assert lowest != newcomer.priority or not _could_fit(inside, newcomer, own)
            continue
        for one in displaced:
            assert one.priority <= newcomer.priority
            assert one.priority < newcomer.priority or measure(one) > own
            later = inside[inside.index(one) + 1 :]
            same = [
                other
                for other in later
                if (other.account_id, other.priority) == (one.account_id, one.priority)
            ]
            assert not same, "an older one gave way before a newer"
            inside.remove(one)
            crowd.remove(one)
        crowd.add(newcomer)
        inside.append(newcomer)
        if len(inside) > 1:
            assert len(inside) <= BOUNDS.max_requests
            assert sum(one.num_tokens for one in inside) <= BOUNDS.max_tokens
            assert sum(one.num_bytes for one in inside) <= BOUNDS.max_bytes


def _could_fit(inside: list[Waiter], newcomer: Waiter, own: int) -> bool:
    """True when some account of the newcomer's priority holds so much more that its newest request
    alone would have made the room.
    """
    for one in inside:
        group = [
            other
            for other in inside
            if (other.account_id, other.priority) == (one.account_id, one.priority)
        ]
        rest = [other for other in inside if other is not group[-1]]
        fits = not rest or (
            len(rest) < BOUNDS.max_requests
            and sum(other.num_tokens for other in (*rest, newcomer)) <= BOUNDS.max_tokens
            and sum(other.num_bytes for other in (*rest, newcomer)) <= BOUNDS.max_bytes
        )
        size = sum(BOUNDS.measure(other) for other in group)
        sizes = [
            sum(
                BOUNDS.measure(other)
                for other in inside
                if (other.account_id, other.priority) == (each.account_id, each.priority)
            )
            for each in inside
        ]
        if one.priority == newcomer.priority and size == max(sizes) > own and fits:
            return sizes.count(size) == len(group)
    return False


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(seed=st.integers(0, 2**32), num_steps=st.integers(1, 60))
def test_no_room_is_left_unused_and_no_request_leaves_the_law(seed: int, num_steps: int) -> None:
    asyncio.run(_live(random.Random(seed), num_steps))


async def _live(rng: random.Random, num_steps: int) -> None:
    """A queue's life by chance."""
    world = World(max_requests=40)
    asked: list[Asked] = []
    released: set[int] = set()
    for _ in range(num_steps):
        _step(rng, world, asked, released)
        await settle()
        _check(world, asked)
    for one in asked:
        one.client.leave()
    await settle()
    assert world.queue.num_waiting == 0
    for one in asked:
        assert one.task.done()
        assert one.is_placed or isinstance(one.error, Exception)


def _step(rng: random.Random, world: World, asked: list[Asked], released: set[int]) -> None:
    """One thing that can happen."""
    placed = [n for n, one in enumerate(asked) if one.is_placed and n not in released]
    match rng.randrange(8):
        case 0 | 1 | 2:
            priority, regions = rng.choice([-1000, 0, 0, 0, 1]), rng.choice(REGIONS)
            tokens, wait_s = rng.randrange(1, 500), rng.choice([2.0, 60.0])
            letter = rng.choice("1112")
            try:
                world.fleet.release(world.fleet.plan(RouteNeed(MODEL, list_allowed(regions))))
            except CapacityError:  # only who finds no room waits
                new = world.ask(
                    letter, *regions, priority=priority, num_tokens=tokens, max_wait_s=wait_s
                )
                asked.append(new)
        case 3:
            world.report(rng.choice("ab"), waiting=rng.randrange(MAX_WAITING - 3, MAX_WAITING + 2))
        case 4 if placed:
            number = rng.choice(placed)
            released.add(number)
            world.fleet.release(asked[number].plan)
        case 5 if asked:
            rng.choice(asked).client.leave()
        case 6:
            world.now_s += rng.choice([0.1, 1.0])
            world.queue.sweep()
        case _:
            if rng.random() < 0.5:
                world.fleet.set_drained([NodeId(rng.choice("ab"))])
            else:
                world.fleet.set_drained([])


def _check(world: World, asked: list[Asked]) -> None:
    """What must hold at all times."""
    waiting = [one for one in asked if not one.task.done()]
    assert world.queue.num_waiting == len(waiting) <= 20  # one model may have half
    for one in waiting:
        assert one.waiter.until_s > world.now_s - 1.1
        for node_id in ("a", "b"):
            assert not world.fleet.takes(NodeId(node_id), one.waiter.need), "room is left unused"
    for one in asked:
        if one.is_placed:
            allowed = one.waiter.need.allowed_regions
            assert allowed is None or one.plan.region in allowed
        elif one.task.done() and not one.client.is_lost:
            assert isinstance(one.error, PoolSaturated)
