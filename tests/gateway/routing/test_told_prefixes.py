"""Prompts whose beginnings came in through another gateway: nodes tell, the law is as it was."""

from random import Random

import msgspec

from contracts.grant import RetentionClass
from contracts.ids import BootId, NodeId, RegionId
from contracts.inference import GenerateRequest, SamplingParams, TextPrompt
from contracts.node_roles import NodeRole
from contracts.prefix_keys import pack_keys
from gateway.routing.fleet import Fleet
from gateway.routing.prefix_index import MAX_KEYS_PER_NODE
from gateway.routing.regions import Region
from gateway.routing.rings import MAX_HEARD_NODES, measure_earshot_s
from gateway.routing.route_plan import RouteNeed
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, create_fleet, create_report

SALT = b"s" * 32
TEXT = TextPrompt(text="A contract of many words. " * 200)
NODES = [f"n{place}" for place in range(4)]


def create_gateway(*others: str) -> Fleet:
    """A gateway that sees four nodes alike."""
    fleet = create_fleet(*NODES, *others, sources=Sources(lambda: 1.0, lambda: 1.0, lambda _: 0))
    for node_id in NODES:
        fleet.record_report(create_report(node_id))
    return fleet


def describe(
    salt: bytes = SALT,
    retention: RetentionClass = RetentionClass.STANDARD,
    allowed: tuple[RegionId, ...] | None = None,
) -> RouteNeed:
    """What a gateway makes of the prompt."""
    request = GenerateRequest(model=MODEL, prompt=TEXT, sampling=SamplingParams())
    return create_gateway().locality.describe(request, allowed, salt, retention, None)


def tell(
    fleet: Fleet, node_id: str, need: RouteNeed, region: str = "weur", boot: str = "boot"
) -> None:
    """The node reports that the prompt has just been there."""
    report = create_report(node_id, region)
    told = pack_keys(tuple(reversed(need.prefix_keys)))
    fleet.record_report(msgspec.structs.replace(report, prefixes=told, boot_id=BootId(boot)))


def test_a_prompt_goes_where_another_gateway_sent_one_like_it() -> None:
    untold = create_gateway().plan(describe()).node_id
    for node_id in NODES:
        fleet = create_gateway()
        tell(fleet, node_id, describe())
        plan = fleet.plan(describe())
        assert plan.node_id == node_id
        assert plan.num_cached_tokens > 500
    assert {create_gateway().plan(describe()).node_id for _ in NODES} == {untold}  # the control


def test_what_is_told_of_one_account_says_nothing_of_another() -> None:
    for need in (describe(salt=b"t" * 32), describe(retention=RetentionClass.NONE)):
        for node_id in NODES:
            fleet = create_gateway()
            tell(fleet, node_id, describe())
            assert fleet.plan(need).num_cached_tokens == 0
    assert describe(retention=RetentionClass.NONE).prefix_keys == ()


def test_a_node_that_names_a_prompt_draws_it_nowhere_it_may_not_be() -> None:
    fleet = create_gateway("abroad")
    tell(fleet, "abroad", describe(), region="enam")
    assert fleet.plan(describe()).node_id == "abroad"  # the control
    assert fleet.plan(describe(allowed=(RegionId("weur"),))).region == "weur"


def test_what_was_told_ends_with_the_nodes_life() -> None:
    fleet = create_gateway()
    tell(fleet, NODES[2], describe())
    fleet.record_report(msgspec.structs.replace(create_report(NODES[2]), boot_id=BootId("next")))
    assert fleet.plan(describe()).num_cached_tokens == 0
    tell(fleet, NODES[2], describe(), boot="next")
    assert fleet.plan(describe()).num_cached_tokens > 500


def test_what_a_node_repeats_moves_nothing_that_was_heard_since() -> None:
    fleet = create_gateway()
    index, report = fleet.locality._index, create_report(NODES[0])
    load = msgspec.structs.replace(report.loads[0], num_blocks=24, num_free_blocks=24)
    report = msgspec.structs.replace(report, loads=(load,))  # room for three

    def hear(*names: int) -> list[int]:
        """Which of a few names the node is thought to have then."""
        fleet.record_report(msgspec.structs.replace(report, prefixes=pack_keys(names)))
        return [name for name in range(1, 7) if index.measure(NodeId(NODES[0]), [name])]

    assert hear(1, 2, 3) == [1, 2, 3]
    assert hear(1, 2, 3, 4) == [2, 3, 4]
    assert hear(3, 4, 5) == [3, 4, 5]
    assert hear(2, 6) == [2, 5, 6]  # the control: told anew, it is news


def test_names_without_end_leave_room_for_the_latest() -> None:
    fleet = create_gateway()
    report = create_report(NODES[1])
    for first in range(0, 2 * MAX_KEYS_PER_NODE, 8192):
        names = pack_keys(range(first, first + 8192))
        fleet.record_report(msgspec.structs.replace(report, prefixes=names))
    tell(fleet, NODES[1], describe())
    assert fleet.plan(describe()).node_id == NODES[1]
    assert fleet.locality._index.num_keys <= MAX_KEYS_PER_NODE


def test_holders_that_are_far_away_or_gone_hide_no_near_one() -> None:
    far = ["f0", "f1", "f2"]
    regions = {"weur": Region("eu", 0.0), "enam": Region("eu", 0.5)}
    near = [f"m{place}" for place in range(40)]
    bits = Random(3).getrandbits
    sources = Sources(lambda: 1.0, lambda: 1.0, bits)
    fleet = create_fleet(*near, *far, sources=sources, regions=regions)
    for node_id in near:
        fleet.record_report(create_report(node_id))
    need = describe()
    for node_id in far:
        tell(fleet, node_id, need, region="enam")
    tell(fleet, "m17", need)
    for is_there in (True, False):
        plan = fleet.plan(need)
        assert (plan.node_id, plan.num_cached_tokens > 500) == ("m17", True)
        fleet.release(plan)
        if is_there:
            for node_id in far:
                fleet.record_link_lost(NodeId(node_id))


def test_of_many_nodes_the_prompts_of_the_nearest_are_remembered() -> None:
    regions = {"weur": Region("eu", 0.0), "enam": Region("eu", 0.001)}
    sources = Sources(lambda: 1.0, lambda: 1.0, Random(3).getrandbits)
    near = [f"m{place}" for place in range(MAX_HEARD_NODES)]
    fleet = create_fleet("far", *near, sources=sources, regions=regions)
    need = describe()

    for node_id in near[1:]:
        fleet.record_report(create_report(node_id))
    tell(fleet, "far", need, region="enam")
    assert fleet.locality._index.measure(NodeId("far"), need.prefix_keys)  # the control: just few
    fleet.record_report(create_report(near[0]))
    tell(fleet, "far", need, region="enam", boot="next")
    assert not fleet.locality._index.measure(NodeId("far"), need.prefix_keys)
    tell(fleet, near[-1], need)
    assert fleet.plan(need).node_id == near[-1]
    fleet.dismiss(NodeId(near[0]))
    tell(fleet, "far", need, region="enam", boot="after")
    assert fleet.locality._index.measure(NodeId("far"), need.prefix_keys)


def test_all_nodes_of_a_region_are_equally_near() -> None:
    fleet = create_gateway()
    nodes, away_s = fleet.roster.snapshots, {RegionId("weur"): 0.003}
    assert measure_earshot_s(nodes, away_s.__getitem__, max_nodes=2) == 0.003
    assert measure_earshot_s(nodes, away_s.__getitem__, max_nodes=4) == float("inf")


def test_a_node_for_prompts_that_has_it_hides_no_node_that_answers() -> None:
    names = ["p0", "p1", "p2"]
    fleet = create_fleet(*names, *NODES, sources=Sources(lambda: 1.0, lambda: 1.0, lambda _: 0))
    need = describe()
    for node_id in (*names, *NODES):
        role = NodeRole.PREFILL if node_id in names else NodeRole.DECODE
        told = pack_keys(need.prefix_keys[::-1]) if node_id in (*names, NODES[3]) else b""
        report = msgspec.structs.replace(create_report(node_id), role=role, prefixes=told)
        fleet.record_report(report)
    assert fleet.plan(need).node_id == NODES[3]
