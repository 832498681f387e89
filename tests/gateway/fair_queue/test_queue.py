"""The queue before full nodes: who goes when there is room, who is refused, who is forgotten."""

import asyncio
from types import FunctionType, MethodType
from typing import Any, cast

import msgspec
import pytest

from contracts.adapters import AdapterRef
from contracts.errors import NoEndpoint, PoolSaturated, ServiceStopping, UnknownModel
from contracts.ids import NodeId, RegionId
from contracts.inference import Usage
from contracts.node_roles import NodeRole
from gateway.fair_queue import queue as fair_queue
from gateway.routing.filters import find_rejection
from gateway.routing.route_plan import RouteNeed, Sent
from tests.gateway.fair_queue.queue_words import (
    FULL_RUNNING,
    MAX_WAITING,
    Asked,
    World,
    refusal_of,
    settle,
)
from tests.gateway.routing.fleet_words import (
    BOUND,
    BOUNDS,
    MODEL,
    NOW_S,
    create_card,
    create_endpoint,
    create_load,
    create_node,
    create_report,
)

ADAPTER = AdapterRef(weights_sha256=b"1" * 32, num_bytes=100, scale=2.0, rank=16)


class Noted:
    """A need, and which of its fields somebody has looked at."""

    def __init__(self, need: RouteNeed) -> None:
        self._need = need
        self.names = set[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(RouteNeed, name)
        if isinstance(found, FunctionType):
            return MethodType(found, self)  # what it looks at counts
        self.names.add(name)
        return getattr(self._need, name)


async def test_who_waits_goes_one_by_one_as_a_node_has_room() -> None:
    world = World()
    asked = [world.ask() for _ in range(5)]
    await settle()
    assert not any(one.task.done() for one in asked)
    world.report("a", waiting=MAX_WAITING - 2)
    await settle()
    assert [one.is_placed for one in asked] == [True, True, False, False, False]
    with pytest.raises(PoolSaturated):  # both count there already: nobody stampedes
        world.fleet.plan(RouteNeed(MODEL, None))
    world.fleet.release(asked[0].plan)
    await settle()
    assert [one.is_placed for one in asked] == [True, True, True, False, False]
    assert world.queue.num_waiting == 2
    world.report("a", 0, 0)
    await settle()
    assert all(one.is_placed for one in asked)


async def test_a_request_that_ends_makes_room_though_a_report_has_counted_it() -> None:
    world = World()
    world.report("a", 0, FULL_RUNNING)
    plans = [world.fleet.plan(RouteNeed(MODEL, None)) for _ in range(MAX_WAITING)]
    asked = world.ask()
    world.report("a")  # counts all of them
    await settle()
    assert not asked.task.done()
    world.fleet.release(plans[0])
    await settle()
    assert asked.is_placed


async def test_who_may_go_to_one_region_only_is_in_nobodys_way() -> None:
    world = World()
    bound = [world.ask("1", "weur") for _ in range(20)]
    other, free = world.ask("1", "enam"), world.ask("1")
    await settle()
    world.report("b", waiting=MAX_WAITING - 2)
    await settle()
    assert other.is_placed
    assert free.is_placed
    assert (other.plan.region, free.plan.region) == ("enam", "enam")
    assert not any(one.task.done() for one in bound)
    world.report("a", 0, 0)
    await settle()
    assert {one.plan.region for one in bound if one.is_placed} == {"weur"}


@pytest.mark.parametrize(
    "need",
    [
        RouteNeed(MODEL, None, leaves_nothing=True),
        RouteNeed(MODEL, None, min_context=8192),
        RouteNeed(MODEL, None, num_prompts=2),
        RouteNeed(MODEL, None, has_bad_words=True),
        RouteNeed(MODEL, None, adapter=ADAPTER),
        RouteNeed(MODEL, (RegionId("enam"),), jurisdictions=frozenset({"us"})),
        RouteNeed(MODEL, None),  # the control
    ],
    ids=["keeps", "short", "one", "heedless", "plain", "abroad", "any"],
)
async def test_who_may_not_go_to_a_node_is_in_nobodys_way_there(need: RouteNeed) -> None:
    world = World()
    keeping = msgspec.structs.replace(create_card(), may_keep=True)
    bound = world.ask("1", need=need)
    await settle()
    free = world.ask("2")
    await settle()
    load = create_load(running=FULL_RUNNING, waiting=MAX_WAITING - 1, max_running=FULL_RUNNING)
    report = create_report("b", "enam")
    world.fleet.record_report(msgspec.structs.replace(report, models=(keeping,), loads=(load,)))
    await settle()  # and nobody has swept
    may_go = need == RouteNeed(MODEL, None)
    assert (bound.is_placed, free.is_placed) == (may_go, not may_go)


def test_all_that_a_node_may_be_passed_over_for_tells_kinds_of_requests_apart() -> None:
    """A filter whose wish is in no kind lets one request stand in the way of others."""
    looked_at, told_apart = Noted(BOUND), Noted(BOUND)
    passed = find_rejection(create_node("a"), Sent(), cast(RouteNeed, looked_at), BOUNDS, NOW_S)
    assert passed is None
    fair_queue._find_kind(cast(RouteNeed, told_apart), frozenset(), frozenset())
    assert looked_at.names - {"model"} <= told_apart.names
    assert {"num_prompts", "min_context"} <= looked_at.names


async def test_the_higher_priority_goes_first_and_accounts_take_turns() -> None:
    world = World()
    crowd = [world.ask("1") for _ in range(4)]
    late, urgent = world.ask("2"), world.ask("3", priority=1)
    order: list[Asked] = []
    for one in (*crowd, late, urgent):
        one.task.add_done_callback(lambda _, one=one: order.append(one))
    await settle()
    for _ in range(6):
        world.report("a", waiting=MAX_WAITING - 1)
        await settle()
    assert order == [urgent, crowd[0], late, *crowd[1:]]


async def test_what_answers_have_really_taken_counts_afterwards() -> None:
    world = World()
    first = [world.ask("1") for _ in range(3)]
    second = [world.ask("2") for _ in range(3)]
    await settle()
    world.report("a", waiting=MAX_WAITING - 2)
    await settle()
    assert first[0].is_placed
    assert second[0].is_placed
    world.queue.correct(first[0].waiter, Usage(10, 0, 400))
    world.queue.correct(second[0].waiter, None)
    world.report("a", waiting=MAX_WAITING - 2)
    await settle()
    assert [one.is_placed for one in first[1:]] == [False, False]
    assert all(one.is_placed for one in second)


async def test_a_node_that_refuses_is_asked_again_after_its_next_report() -> None:
    world = World()
    world.report("a", waiting=MAX_WAITING - 1)
    node = world.fleet.roster.find(NodeId("a"))
    assert node is not None
    asked = world.ask("1", "weur")
    asked.waiter.refused = {node.node_id: node.num_reports}
    await settle()
    world.queue.sweep()
    await settle()
    assert not asked.task.done()
    neighbour = world.ask("2")
    await settle()
    world.queue.sweep()
    await settle()
    assert neighbour.is_placed  # what one is refused another may have
    world.report("a", waiting=MAX_WAITING - 1)
    await settle()
    assert asked.is_placed


@pytest.mark.parametrize("num_cancelled", [0, 5])
async def test_who_is_cancelled_when_it_is_placed_leaves_the_node_for_its_prompt_free(
    num_cancelled: int,
) -> None:
    """One that is on probation has two requests at a time, and would never have another."""
    world = World()
    prefill = msgspec.structs.replace(
        create_report("b", "enam"), role=NodeRole.PREFILL, kv_endpoints=(create_endpoint("b"),)
    )
    world.fleet.record_report(prefill)
    world.fleet.record_link_lost(prefill.node_id)
    load = create_load(running=20, waiting=MAX_WAITING)
    full = msgspec.structs.replace(
        create_report("a"), loads=(load,), kv_endpoints=(create_endpoint("a"),)
    )
    free = msgspec.structs.replace(full, loads=(create_load(running=20),))
    need = RouteNeed(
        MODEL, None, num_prompt_bytes=32_000, num_prompt_tokens=8000, may_move=True, may_wait=True
    )

    async def ask() -> Asked:
        world.fleet.record_report(full)
        world.fleet.record_report(prefill)
        asked = world.ask(need=need)
        await settle()
        assert not asked.task.done()
        world.fleet.record_report(free)
        return asked

    for _ in range(num_cancelled):
        (await ask()).task.cancel()
        await settle()
    asked = await ask()
    await settle()
    assert asked.plan.prefill is not None
    assert asked.plan.prefill.node_id == "b"


async def test_a_client_that_leaves_frees_its_place_at_once() -> None:
    world = World(max_requests=2)
    staying, leaving = world.ask("1"), world.ask("1", num_bytes=70)
    await settle()
    # One model has half of the places, so that the second one was refused already.
    assert isinstance(leaving.error, PoolSaturated)
    staying.client.leave()
    assert world.queue.num_waiting == 0
    assert isinstance(await refusal_of(staying), NoEndpoint)
    again = world.ask("1")
    await settle()
    assert not again.task.done()
    assert world.find_end_count("left") == 1


async def test_a_task_that_is_cancelled_leaves_nothing_behind() -> None:
    world = World()
    waiting, placed = world.ask(), world.ask()
    await settle()
    waiting.task.cancel()
    await settle()
    assert world.queue.num_waiting == 1
    world.report("a", waiting=MAX_WAITING - 1)  # it is given a node ...
    placed.task.cancel()  # ... and never learns of it
    await settle()
    assert placed.task.cancelled()
    assert world.fleet.plan(RouteNeed(MODEL, None)).node_id == "a"


async def test_who_waits_too_long_is_refused_and_told_when_to_come_back() -> None:
    world = World()
    crowd = [world.ask("1", max_wait_s=500.0) for _ in range(40)]
    short = world.ask("2", max_wait_s=30.0)
    await settle()
    for _ in range(30):
        world.now_s += 1.0
        world.report("a", waiting=MAX_WAITING - (1 if world.now_s == 1.0 else 0))
        world.report("b")
        world.queue.sweep()
        await settle()
    assert crowd[0].is_placed
    error = await refusal_of(short)
    assert isinstance(error, PoolSaturated)
    assert error.retry_after_s is not None
    assert error.retry_after_s >= 29
    assert world.find_end_count("late") == 1


async def test_the_pace_of_the_queue_says_when_to_come_back() -> None:
    world = World(max_requests=40)
    crowd = [world.ask("1") for _ in range(20)]
    await settle()
    for _ in range(5):
        world.now_s += 1.0
        world.report("a", waiting=MAX_WAITING - 1)
        await settle()
    refused = await refusal_of(world.ask("1", num_tokens=10**9))
    assert sum(one.is_placed for one in crowd) == 5
    # A second of 100 tokens each: it cannot be told to come back in one.
    assert refused.retry_after_s == 60.0
    estimate = world.queue.refuse(world.ask("1", num_tokens=1).waiter).retry_after_s
    assert estimate is not None
    assert 20 <= estimate <= 40


async def test_an_account_that_fills_the_queue_gives_way_to_others() -> None:
    world = World(max_requests=20)
    crowd = [world.ask("1") for _ in range(30)]
    await settle()
    assert sum(one.error is not None for one in crowd) == 20
    others = [world.ask("2") for _ in range(10)]
    await settle()
    assert [one.error is None for one in others] == [True] * 5 + [False] * 5
    assert sum(one.error is None for one in crowd) == 5  # the oldest of them
    assert all(one.error is None for one in crowd[:5])
    assert world.find_end_count("displaced") == 5


async def test_a_queue_of_no_places_refuses_at_once() -> None:
    world = World(max_requests=0)
    assert isinstance(await refusal_of(world.ask()), PoolSaturated)


async def test_what_is_offered_no_more_is_refused_and_what_is_away_is_awaited() -> None:
    world = World()
    asked = world.ask("1", "enam")
    await settle()
    world.fleet.record_link_lost(NodeId("b"))
    world.queue.sweep()
    await settle()
    assert not asked.task.done()
    world.report("b", 0, 0)
    await settle()
    assert asked.is_placed
    world.report("b")
    hopeless = world.ask("1")
    await settle()
    for node_id in ("a", "b"):
        empty = create_report(node_id, "weur" if node_id == "a" else "enam")
        world.fleet.record_report(msgspec.structs.replace(empty, models=(), loads=()))
    world.queue.sweep()
    assert isinstance(await refusal_of(hopeless), UnknownModel)


async def test_drained_nodes_get_nothing_and_what_is_undrained_does() -> None:
    world = World()
    asked = world.ask("1", "weur")
    await settle()
    world.fleet.set_drained([NodeId("a")])
    world.report("a", 0, 0)
    await settle()
    assert not asked.task.done()
    world.fleet.set_drained([])
    await settle()
    assert asked.is_placed


async def test_nobody_who_can_wait_goes_to_a_node_that_fails() -> None:
    world = World()
    world.report("b", 0, 0)
    for _ in range(5):
        world.fleet.note_failure(NodeId("b"), 0)
    patient = RouteNeed(MODEL, None, may_wait=True)
    with pytest.raises(PoolSaturated):
        world.fleet.plan(patient)
    assert world.fleet.plan(RouteNeed(MODEL, None)).node_id == "b"  # the last resort of the rest
    asked = world.ask(need=patient)
    await settle()
    world.queue.sweep()
    await settle()
    assert not asked.task.done()
    world.now_s += 3.0  # the breaker closes, and no report says so
    world.report("a")
    world.queue.sweep()
    await settle()
    assert asked.is_placed
    assert asked.plan.node_id == "b"


async def test_when_the_process_stops_everybody_hears_so() -> None:
    world = World()
    asked = world.ask()
    await settle()
    world.queue.end()
    assert isinstance(await refusal_of(asked), ServiceStopping)
    assert isinstance(await refusal_of(world.ask()), ServiceStopping)
    assert world.queue.num_waiting == 0
    await asyncio.sleep(0)
