"""Of nodes that have left for good nothing is kept: where they come by the day, none returns."""

import random

from msgspec.structs import replace

from contracts.ids import GatewayId, NodeId, RegionId
from contracts.placement import ModelPlacement, PlacementPlan, Tier
from gateway.routing.fleet import Fleet
from gateway.routing.placement_desk import PlacementDesk
from gateway.routing.snapshots import Vouched
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, NEED, create_fleet, create_report

WEUR = Vouched(RegionId("weur"), "eu")
PLACED = ModelPlacement(name=MODEL, tier=Tier.GPU, weights_bytes=1, kv_bytes=1)
NUM_NODES = 50


def create_fleet_of_one() -> tuple[Fleet, Sources]:
    """A node that stays."""
    sources = Sources(lambda: 0.0, lambda: 0.0, random.Random(1).getrandbits)
    fleet = create_fleet("home", sources=sources)
    fleet.record_report(create_report("home"))
    return fleet, sources


def leave(fleet: Fleet, node_id: NodeId) -> None:
    """The node goes, and its enrolment with it."""
    fleet.dismiss(node_id)
    fleet.expect({})
    assert not fleet.roster.former  # the control


def test_no_place_is_kept_for_sessions_that_they_have_told_of() -> None:
    fleet, _ = create_fleet_of_one()
    for place in range(NUM_NODES):
        node_id = NodeId(f"spot-{place}")
        fleet.admit(node_id, WEUR)
        fleet.record_report(replace(create_report(node_id), sessions=(place,)))
        leave(fleet, node_id)
    tellers = fleet.locality._sessions._tellers  # pyright: ignore[reportPrivateUsage]
    assert set(tellers) <= {"home"}


def test_nor_what_was_sent_there_for_a_model_that_they_had_given_up() -> None:
    fleet, _ = create_fleet_of_one()
    for place in range(NUM_NODES):
        node_id = NodeId(f"spot-{place}")
        fleet.admit(node_id, WEUR)
        fleet.record_report(create_report(node_id))
        plan = fleet.plan(NEED, node_id)
        fleet.record_report(replace(create_report(node_id), models=(), loads=()))
        fleet.release(plan)
        leave(fleet, node_id)
    sent = fleet._sent  # pyright: ignore[reportPrivateUsage]
    assert {node_id for node_id, _ in sent} <= {"home"}


def test_nor_their_last_plans_of_weights() -> None:
    fleet, sources = create_fleet_of_one()
    desk = PlacementDesk(fleet, GatewayId("gw"), lambda plan: None, sources)
    for place in range(NUM_NODES):
        node_id = NodeId(f"spot-{place}")
        fleet.admit(node_id, WEUR)
        report = replace(create_report(node_id), placements=(PLACED,))
        fleet.record_report(report)
        desk.put(PlacementPlan(node_id=node_id, boot_id=report.boot_id, number=1, targets=()))
        leave(fleet, node_id)
    plans = desk._plans  # pyright: ignore[reportPrivateUsage]
    assert len(plans) == 1  # the last one's, until the next plan
