"""How often nodes are asked to report: sooner where few or near, never too often in sum."""

import msgspec
import pytest

from contracts.ids import NodeId, RegionId
from contracts.wire import Hello, decode_to_node
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.rings import MAX_NEAR_NODES, REPORTS_PER_S, choose_report_ms
from gateway.routing.snapshots import Vouched
from gateway.sources import create_sources
from tests.gateway.routing.fleet_words import create_fleet, create_report

HOME, NEAR, FAR = map(RegionId, ("weur", "near", "far"))
REGIONS = {"near": Region("", 0.005), "far": Region("", 0.02)}
CATALOGUE = RegionCatalogue(HOME, {RegionId(name): region for name, region in REGIONS.items()})


def find_paces_ms(*nodes: tuple[int, RegionId | None]) -> list[int]:
    """Of a node of each group, so many of which are in that region."""
    regions = {
        NodeId(f"{group} {number}"): region
        for group, (count, region) in enumerate(nodes)
        for number in range(count)
    }
    return [
        choose_report_ms(NodeId(f"{group} 0"), regions, CATALOGUE.measure_latency_s)
        for group in range(len(nodes))
    ]


@pytest.mark.parametrize(
    ("num_nodes", "pace_ms"), [(1, 250), (125, 250), (300, 600), (500, 1000), (2000, 1000)]
)
def test_few_nodes_report_sooner_than_many(num_nodes: int, pace_ms: int) -> None:
    """Of one region, or of none that is known."""
    for region in (HOME, FAR, None):
        assert find_paces_ms((num_nodes, region)) == [pace_ms]


def test_the_nearest_report_as_often_as_where_they_are_few() -> None:
    assert find_paces_ms((6, HOME), (40, NEAR), (200, FAR)) == [250, 250, 632]
    assert find_paces_ms((6, HOME), (400, FAR)) == [250, 840]
    assert find_paces_ms((6, HOME), (80, NEAR), (39, FAR)) == [250, 250, 250]


def test_of_those_that_are_equally_near_all_report_alike() -> None:
    """Not the first of them: the nodes of a region are one pool, and compared."""
    assert find_paces_ms((6, HOME), (MAX_NEAR_NODES - 6, NEAR), (100, FAR))[1] == 250
    assert find_paces_ms((6, HOME), (MAX_NEAR_NODES - 5, NEAR), (100, FAR)) == [250, 329, 329]


@pytest.mark.parametrize("num_near", [0, 1, 30, 62, 63, 100])
@pytest.mark.parametrize("num_far", [63, 124, 200, 350, 414])
def test_all_together_report_no_more_often_than_a_gateway_can_read(
    num_near: int, num_far: int
) -> None:
    groups = ((num_near, HOME), (num_far, FAR)) if num_near else ((num_far, FAR),)
    paces_ms = find_paces_ms(*groups)
    per_s = sum(
        count * 1000 / pace_ms for (count, _), pace_ms in zip(groups, paces_ms, strict=True)
    )
    most_slow = num_far if max(paces_ms) == 1000 else 0  # nobody reports less than once a second
    assert per_s <= max(REPORTS_PER_S * 1.01, num_near * 4 + most_slow)


def test_a_node_is_where_operators_or_else_the_node_itself_say_that_it_is() -> None:
    fleet = create_fleet(sources=create_sources(), regions=REGIONS)
    for number in range(200):
        fleet.admit(NodeId(f"far {number}"), Vouched(FAR))
    fleet.admit(NodeId("near"), Vouched(HOME))
    fleet.admit(NodeId("unknown"), Vouched())
    assert fleet.choose_report_ms(NodeId("near")) == 250
    assert fleet.choose_report_ms(NodeId("far 0")) > 250
    assert fleet.choose_report_ms(NodeId("unknown")) > 250
    fleet.record_report(create_report("unknown", HOME))
    assert fleet.choose_report_ms(NodeId("unknown")) == 250  # when it connects again


def test_gateways_of_versions_that_ask_for_nothing_hear_once_a_second() -> None:
    of_before = msgspec.Raw(msgspec.msgpack.encode([10, "proof"]))
    assert decode_to_node(of_before) == Hello("proof", 1000)
