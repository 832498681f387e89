"""Models that sleep: the time to wake them is a cost like any other, not a door that is shut."""

from typing import Any

import msgspec
import pytest

from contracts.placement import ModelPlacement, Tier
from gateway.routing.pace import UNKNOWN_WAKE_S
from gateway.routing.route_plan import NodeSnapshot, Rejection
from gateway.sources import create_sources
from tests.gateway.routing.fleet_words import (
    MODEL,
    choose,
    create_fleet,
    create_load,
    create_node,
    create_report,
)


def create_sleeper(
    node_id: str, wake_s: float, tier: Tier = Tier.HOST, **changes: Any
) -> NodeSnapshot:
    """A node on which the model sleeps."""
    return create_node(
        node_id,
        loads={MODEL: create_load(is_ready=False)},
        placements={MODEL: create_placement(tier, wake_s, **changes)},
    )


def create_placement(tier: Tier, wake_s: float, **changes: Any) -> ModelPlacement:
    return ModelPlacement(
        name=MODEL, tier=tier, weights_bytes=1, kv_bytes=1, wake_s=wake_s, **changes
    )


def test_a_sleeper_is_woken_once_waiting_elsewhere_takes_longer() -> None:
    def create_queue(num_tokens: int) -> NodeSnapshot:
        load = create_load(num_queued_tokens=num_tokens, prefill_tokens_per_s=1000.0)
        return create_node("queue", loads={MODEL: load})

    assert choose(create_sleeper("asleep", 0.5), create_queue(100)).node_id == "queue"
    assert choose(create_sleeper("asleep", 0.5), create_queue(5000)).node_id == "asleep"
    # The control: of a model that is loaded for the first time nobody knows when it will be there.
    loading = create_node("loading", loads={MODEL: create_load(is_ready=False)})
    plan = choose(loading, create_queue(5000))
    assert (plan.node_id, plan.rejected) == ("queue", (("loading", Rejection.MODEL_NOT_READY),))


def test_the_nearest_tier_is_woken() -> None:
    nodes = [create_sleeper("disk", 8.0, Tier.DISK), create_sleeper("host", 0.4)]
    assert choose(*nodes).node_id == "host"


def test_one_that_is_being_woken_already_is_preferred_to_another_wake() -> None:
    asleep, coming = create_sleeper("a", 0.5), create_sleeper("b", 0.6, num_waiting=1)
    assert choose(asleep, coming).node_id == "b"
    assert choose(asleep, create_sleeper("b", 0.6)).node_id == "a"  # the control


def test_one_that_is_loaded_for_those_who_wait_keeps_a_burst_from_waking_another() -> None:
    asleep = create_sleeper("a", 8.0, Tier.DISK)
    awaited = create_sleeper("b", 8.0, Tier.GPU, is_moving=True, num_waiting=1)
    woken_before = create_sleeper("b", 8.0, Tier.GPU, is_moving=True, num_wakes=1)
    assert choose(asleep, awaited).node_id == "b"
    assert choose(asleep, woken_before).node_id == "b"
    # The controls: the first load of a start, and an engine that is started again.
    for changes in ({"is_moving": True}, {"num_waiting": 1, "num_wakes": 1}):
        plan = choose(asleep, create_sleeper("b", 8.0, Tier.GPU, **changes))
        assert (plan.node_id, plan.rejected) == ("a", (("b", Rejection.MODEL_NOT_READY),))


def test_a_wrong_figure_does_not_keep_a_node_out_for_good() -> None:
    load = create_load(num_queued_tokens=10**6, prefill_tokens_per_s=1000.0)
    queue = create_node("queue", loads={MODEL: load})
    assert UNKNOWN_WAKE_S < 10**6 / 1000
    assert choose(create_sleeper("asleep", 1e9), queue).node_id == "asleep"


@pytest.mark.parametrize(
    ("placements", "is_servable"), [((), False), ((create_placement(Tier.DISK, 3.0),), True)]
)
def test_a_fleet_that_only_sleeps_can_serve(placements: Any, is_servable: bool) -> None:
    fleet = create_fleet("a", sources=create_sources())
    report = msgspec.structs.replace(
        create_report("a"), loads=(create_load(is_ready=False),), placements=placements
    )
    fleet.record_report(report)
    assert fleet.has_ready_model() is is_servable
