"""Nodes on which the model sleeps have nothing to do: that says nothing of how busy others are."""

import random

import pytest
from msgspec.structs import replace

from contracts.fleet import ModelLoad
from contracts.ids import NodeId
from contracts.placement import ModelPlacement, Tier
from gateway.routing.route_plan import Hints, NodeSnapshot, Pick
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import (
    FULL,
    MODEL,
    NEED,
    choose,
    create_fleet,
    create_load,
    create_node,
    create_report,
)

ANSWER = replace(NEED, num_prompt_bytes=400, num_prompt_tokens=100, num_output_tokens=500)
NUM_BLOCKS = 40_000


def create_busy(running: int, num_held: int, **figures: float) -> ModelLoad:
    """A node that is awake, and what it holds in tokens."""
    load = create_load(
        running=running,
        num_blocks=NUM_BLOCKS,
        num_free_blocks=NUM_BLOCKS - num_held // 16,
        max_running=256,
    )
    return replace(
        load,
        prefill_tokens_per_s=20_000.0,
        decode_tokens_per_s=running / 0.02,
        decode_step_s=0.02,
        **figures,
    )


def create_sleepers(count: int, region: str = "weur") -> list[NodeSnapshot]:
    """Nodes with the model on disk, whose engine was never started."""
    load = create_load(is_ready=False, num_blocks=0, num_free_blocks=0)
    placed = ModelPlacement(name=MODEL, tier=Tier.DISK, weights_bytes=1, kv_bytes=1, wake_s=20.0)
    return [
        create_node(f"asleep-{i}", region, loads={MODEL: load}, placements={MODEL: placed})
        for i in range(count)
    ]


@pytest.mark.parametrize("num_asleep", [0, 1, 6])
def test_those_that_are_awake_are_compared_by_their_steps_all_the_same(num_asleep: int) -> None:
    full = create_node("full", loads={MODEL: create_busy(80, 80_000)})
    half = create_node("half", loads={MODEL: create_busy(40, 40_000)})
    assert choose(full, half, *create_sleepers(num_asleep), need=ANSWER).node_id == "half"


@pytest.mark.parametrize("num_asleep", [0, 1, 6])
def test_and_by_what_they_hold(num_asleep: int) -> None:
    """And not by the number of requests, as where engines do not tell that."""
    large, small = (
        create_node(name, loads={MODEL: replace(load, decode_tokens_per_s=2000.0)})
        for name, load in (("large", create_busy(10, 480_000)), ("small", create_busy(40, 80_000)))
    )
    assert choose(large, small, *create_sleepers(num_asleep), need=ANSWER).node_id == "small"


@pytest.mark.parametrize("num_asleep", [0, 1, 6])
def test_a_session_stays_where_it_was(num_asleep: int) -> None:
    own = create_node("own", loads={MODEL: create_busy(40, 328_000)})
    other = create_node("other", loads={MODEL: create_busy(40, 320_000)})
    hints = Hints(pinned=NodeId("own"))
    plan = choose(own, other, *create_sleepers(num_asleep), need=ANSWER, hints=hints)
    assert (plan.node_id, plan.pick) == ("own", Pick.SESSION)
    busier = replace(own, loads={MODEL: create_busy(40, 480_000)})  # the control
    plan = choose(busier, other, *create_sleepers(num_asleep), need=ANSWER, hints=hints)
    assert plan.node_id == "other"


@pytest.mark.parametrize("num_asleep", [0, 1])
def test_a_sleeper_at_home_makes_no_node_far(num_asleep: int) -> None:
    """Those of the next region are compared as they are: what is nearest is nobody's lure."""
    near = [
        create_node(f"near-{i}", "enam", loads={MODEL: create_busy(running, 10_000 * running)})
        for i, running in enumerate((20, 14, 40, 40))
    ]
    latencies_s = {"enam": 0.001}
    plan = choose(*near, *create_sleepers(num_asleep), need=ANSWER, latencies_s=latencies_s)
    assert plan.node_id == "near-1"


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_session_does_not_wait_for_its_node_to_wake_where_others_are_awake(
    is_asleep: bool,
) -> None:
    """Nor does one begin where the model sleeps. Where it sleeps everywhere (the control), it is
    woken where the session was.
    """
    (sleeper, another) = create_sleepers(2)
    own = sleeper if is_asleep else create_node("asleep-0", loads={MODEL: create_busy(10, 8000)})
    other = create_node("other", loads={MODEL: create_busy(10, 8000)})
    hints = Hints(pinned=NodeId("asleep-0"))
    plan = choose(own, other, another, need=ANSWER, hints=hints)
    assert plan.node_id == ("other" if is_asleep else "asleep-0")
    assert choose(another, sleeper, need=ANSWER, hints=hints).node_id == "asleep-0"


@pytest.mark.parametrize("num_full", [0, 9])
def test_of_a_large_pool_those_are_found_that_are_awake(num_full: int) -> None:
    """However few they are of all that have the model, and however few of those have room."""
    awake = [create_node(f"awake-{i}", loads={MODEL: create_busy(1, 800)}) for i in range(3)]
    full = [create_node(f"full-{i}", loads={MODEL: FULL}) for i in range(num_full)]
    nodes = [*create_sleepers(60), *full, *awake]
    drawn = random.Random(1)
    for _ in range(100):
        assert choose(*nodes, need=ANSWER, draw=drawn.randrange).node_id.startswith("awake")
    assert choose(*nodes[:60], need=ANSWER, draw=drawn.randrange).num_seen <= 8  # the control
    busy = [replace(node, loads={MODEL: FULL}) for node in awake]
    plan = choose(*nodes[:60], *busy, need=ANSWER, draw=drawn.randrange)
    assert plan.node_id.startswith("asleep")


def test_who_falls_asleep_or_wakes_is_drawn_by_what_it_says_now() -> None:
    drawn = random.Random(1)
    sources = Sources(lambda: 0.0, lambda: 0.0, drawn.getrandbits)
    names = [f"node-{i}" for i in range(40)]
    fleet = create_fleet(*names, sources=sources)
    placed = ModelPlacement(name=MODEL, tier=Tier.DISK, weights_bytes=1, kv_bytes=1, wake_s=20.0)
    awake = {"node-7", "node-9"}
    for _ in range(2):
        for name in names:
            load = create_load(is_ready=name in awake)
            report = replace(create_report(name), loads=(load,), placements=(placed,))
            fleet.record_report(report)
        for _ in range(20):
            plan = fleet.plan(ANSWER)
            fleet.release(plan)
            assert plan.node_id in awake
        awake = {"node-7", "node-30"}
