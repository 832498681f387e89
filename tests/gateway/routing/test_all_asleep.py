"""Where the model sleeps on every node, sessions do not wake more of them than are needed."""

import random
from collections import Counter

from msgspec.structs import replace

from contracts.ids import NodeId
from contracts.placement import ModelPlacement, Tier
from gateway.routing.route_plan import Hints
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import (
    MODEL,
    NEED,
    choose,
    create_fleet,
    create_load,
    create_report,
)
from tests.gateway.routing.test_waking import create_sleeper

NAMES = [f"node-{place}" for place in range(8)]


def test_a_session_is_not_kept_where_the_model_wakes_much_later() -> None:
    asleep = create_sleeper("own", 30.0, Tier.DISK), create_sleeper("other", 0.4)
    assert choose(*asleep).node_id == "other"  # the control: without a session
    assert choose(*asleep, hints=Hints(pinned=NodeId("own"))).node_id == "other"


def test_nor_where_it_would_be_woken_beside_one_that_is_being_woken() -> None:
    own, coming = create_sleeper("own", 30.0), create_sleeper("coming", 30.0, num_waiting=1)
    assert choose(own, coming).node_id == "coming"  # the control
    assert choose(own, coming, hints=Hints(pinned=NodeId("own"))).node_id == "coming"


def wake(sessions: list[int | None]) -> Counter[str]:
    """Who gets how many of requests that come one after another, before anybody is awake."""
    rng = random.Random(1)
    fleet = create_fleet(*NAMES, sources=Sources(lambda: 0.0, lambda: 0.0, rng.getrandbits))
    waiting = Counter[str]()
    for session in sessions:
        for name in NAMES:
            placed = ModelPlacement(
                name=MODEL,
                tier=Tier.DISK,
                weights_bytes=1,
                kv_bytes=1,
                wake_s=20.0,
                is_moving=waiting[name] > 0,
                num_waiting=waiting[name],
            )
            load = create_load(is_ready=False)
            fleet.record_report(replace(create_report(name), loads=(load,), placements=(placed,)))
        waiting[fleet.plan(replace(NEED, session=session)).node_id] += 1
    return waiting


def test_sixteen_sessions_do_not_wake_a_whole_pool() -> None:
    rng = random.Random(2)
    assert len(wake([None] * 16)) == 1  # the control: without a session the first one is awaited
    assert len(wake([rng.getrandbits(64) for _ in range(16)])) == 1
