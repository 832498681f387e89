"""What a node's word comes to is worked out once, and never for another word."""

import msgspec

from contracts.node_roles import NodeRole
from gateway.routing.filters import find_unready
from gateway.routing.pace import measure_pace
from gateway.routing.route_plan import NodeSnapshot, Rejection
from tests.gateway.routing.fleet_words import MODEL, create_load, create_node

IDLE, BUSY = create_load(), create_load(running=3, waiting=2, num_queued_tokens=900)


def replace(node: NodeSnapshot, **changes: object) -> NodeSnapshot:
    """The node as something else is said of it."""
    return msgspec.structs.replace(node, **changes)


def test_it_is_worked_out_once() -> None:
    node = create_node("a", loads={MODEL: BUSY})
    assert node.find_pace(MODEL) is node.find_pace(MODEL)
    assert node.find_pace(MODEL) == measure_pace(BUSY, 0.0)


def test_a_copy_of_which_other_things_are_said_has_its_own() -> None:
    node = create_node("a", loads={MODEL: IDLE})
    early = replace(node, loads={MODEL: BUSY})  # before anything was worked out
    assert node.find_pace(MODEL).num_queued == 0
    assert early.find_pace(MODEL).num_queued == 900
    late = replace(node, loads={MODEL: BUSY})
    assert (late.find_pace(MODEL).num_requests, node.find_pace(MODEL).num_requests) == (5, 0)


def test_who_can_be_told_to_wake_is_told_apart_from_who_is_awake() -> None:
    asleep = create_load(is_ready=False)
    node = create_node("a", loads={MODEL: asleep})
    assert find_unready(node, measure_pace(asleep, None)) is Rejection.MODEL_NOT_READY
    assert find_unready(node, measure_pace(asleep, 2.0)) is None
    for_prompts = replace(node, role=NodeRole.PREFILL)
    assert find_unready(for_prompts, measure_pace(IDLE, 0.0)) is Rejection.PREFILL_ONLY
