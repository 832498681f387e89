"""Regions that an account prefers compute as long as they have room, and nothing forbidden."""

import itertools
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from contracts.errors import PoolSaturated, ResidencyViolation
from contracts.ids import NodeId, RegionId
from contracts.node_roles import NodeRole
from gateway.routing.choose_node import choose_node
from gateway.routing.hand_over_meter import HandOverMeter
from gateway.routing.regions import Region
from gateway.routing.route_choice import choose_route
from gateway.routing.route_plan import (
    Hints,
    NodeSnapshot,
    Pick,
    Rejection,
    RouteNeed,
    RoutePlan,
)
from gateway.routing.sessions import choose_first_place
from gateway.routing.wishes import format_explanation
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import (
    FULL,
    MODEL,
    NEED,
    NOW_S,
    allow,
    choose,
    create_fleet,
    create_load,
    create_node,
    create_report,
    create_state,
)

LATENCIES_S = {"weur": 0.0, "eeur": 0.05, "enam": 0.2}
BUSY = create_load(running=4, waiting=4)


def prefer(*groups: str, need: RouteNeed = NEED) -> RouteNeed:
    """The same with these groups of regions, each with commas, in order."""
    split = [frozenset(map(RegionId, group.split(","))) for group in groups]
    return replace(need, preferred=tuple(split))


def pick(need: RouteNeed, *nodes: Any, **facts: Any) -> tuple[str, int]:
    """The node for `need`, and how many groups had no room for it."""
    plan = choose(*nodes, need=need, latencies_s=LATENCIES_S, **facts)
    return plan.node_id, plan.num_spilled


HOME, NEXT, FAR = (
    create_node("home", "weur"),
    create_node("next", "eeur"),
    create_node("far", "enam"),
)


def test_who_is_preferred_computes_though_others_are_nearer_and_idle() -> None:
    busy = replace(FAR, loads={MODEL: BUSY})
    assert pick(NEED, HOME, NEXT, busy) == ("home", 0)  # the control
    assert pick(prefer("enam"), HOME, NEXT, busy) == ("far", 0)
    assert pick(prefer("eeur,enam"), HOME, NEXT, busy) == ("next", 0)


def test_who_finds_no_room_goes_on_in_the_order_that_is_named() -> None:
    full = replace(FAR, loads={MODEL: FULL})
    assert pick(prefer("enam", "eeur"), HOME, NEXT, full) == ("next", 1)
    assert pick(prefer("enam"), HOME, NEXT, full) == ("home", 1)
    assert pick(prefer("apac", "enam"), HOME, NEXT, FAR) == ("far", 1)
    none_left = [replace(node, loads={MODEL: FULL}) for node in (HOME, NEXT, FAR)]
    with pytest.raises(PoolSaturated):
        pick(prefer("enam", "eeur"), *none_left)


@pytest.mark.parametrize("trouble", [Rejection.BREAKER_OPEN, Rejection.ON_PROBATION])
def test_nodes_that_fail_or_are_to_be_woken_are_no_room(trouble: Rejection) -> None:
    assert pick(prefer("enam"), HOME, FAR, troubled={"far": trouble}) == ("home", 1)
    asleep = replace(FAR, loads={MODEL: create_load(is_ready=False)})
    assert pick(prefer("enam"), HOME, asleep) == ("home", 1)
    both = {"home": trouble, "far": trouble}
    assert pick(prefer("enam"), HOME, FAR, troubled=both) == ("home", 1)


def test_what_is_preferred_opens_no_region() -> None:
    bound = allow("weur", "eeur")
    assert pick(prefer("enam", need=bound), HOME, NEXT, FAR) == ("home", 1)
    assert pick(prefer("enam,eeur", need=bound), HOME, NEXT, FAR) == ("next", 0)
    with pytest.raises(ResidencyViolation):
        pick(prefer("enam", need=bound), FAR)
    with pytest.raises(ResidencyViolation):
        pick(prefer("enam", need=allow()), HOME, FAR)


def test_a_node_of_another_jurisdiction_gets_nothing_in_a_region_that_is_allowed() -> None:
    need = replace(allow("weur"), jurisdictions=frozenset({"eu"}))
    abroad = replace(create_node("abroad"), jurisdiction="us")
    assert pick(need, replace(HOME, loads={MODEL: BUSY}), abroad)[0] == "home"
    assert pick(allow("weur"), replace(HOME, loads={MODEL: BUSY}), abroad)[0] == "abroad"
    with pytest.raises(ResidencyViolation):
        pick(need, abroad)


def test_one_node_with_room_is_found_among_hundreds_that_are_full() -> None:
    crowd = [create_node(f"n{n}", "enam", loads={MODEL: FULL}) for n in range(200)]
    crowd[100] = replace(crowd[100], loads={MODEL: create_load()})
    assert pick(prefer("enam"), HOME, *crowd) == ("n100", 0)
    crowd[100] = replace(crowd[100], loads={MODEL: FULL})
    assert pick(prefer("enam"), HOME, *crowd) == ("home", 1)


def test_thousands_of_full_nodes_cost_a_bounded_number_of_looks() -> None:
    crowd = [create_node(f"n{n}", "enam", loads={MODEL: FULL}) for n in range(3000)]
    turns = itertools.count()
    looks = [0]

    def draw(count: int) -> int:
        looks[0] += 1
        return next(turns) * 7 % count

    plan = choose(HOME, *crowd, need=prefer("enam"), latencies_s=LATENCIES_S, draw=draw)
    assert (plan.node_id, plan.num_spilled) == ("home", 1)
    assert 256 <= looks[0] < 300


def test_a_session_goes_home_once_there_is_room_again() -> None:
    home = NodeId("home")
    hints = Hints((home,), measure_cached=lambda node_id: 4000 * (node_id == home), pinned=home)
    long = replace(NEED, num_prompt_bytes=4000, num_prompt_tokens=1000)
    assert choose(HOME, FAR, need=long, hints=hints).pick is Pick.SESSION  # the control
    plan = choose(HOME, FAR, need=prefer("enam", need=long), hints=hints)
    assert (plan.node_id, plan.pick) == ("far", Pick.COST)
    hints = replace(hints, holders=(), pinned=NodeId("far"))
    plan = choose(HOME, FAR, need=prefer("enam", need=long), hints=hints)
    assert (plan.node_id, plan.pick) == ("far", Pick.SESSION)


def test_the_prompt_is_computed_where_the_answer_is_preferred() -> None:
    quick = HandOverMeter()
    for _ in range(300):
        quick.note(1, 0.0, 0.0)
        quick.note(10_000, 1e-6, 0.0)
    long = replace(NEED, num_prompt_bytes=40_000, num_prompt_tokens=10_000, may_move=True)
    busy = replace(FAR, loads={MODEL: BUSY})
    prompts = replace(create_node("prompts", "weur"), role=NodeRole.PREFILL)
    beside = replace(create_node("beside", "enam"), role=NodeRole.PREFILL)

    def route(need: RouteNeed, *others: Any) -> RoutePlan:
        state = create_state([busy, *others])
        return choose_route(state, need, lambda count: count - 1, quick)

    plan = route(long, prompts)
    assert plan.prefill is not None  # the control
    assert route(prefer("enam", need=long), prompts).prefill is None
    plan = route(prefer("enam", need=long), prompts, beside)
    assert plan.prefill is not None
    assert plan.prefill.node_id == "beside"


def test_a_session_begins_and_prompts_are_looked_for_where_it_is_preferred() -> None:
    sources = Sources(monotonic_s=lambda: NOW_S, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    regions = {name: Region("eu", latency_s) for name, latency_s in LATENCIES_S.items()}
    far = [f"far{number}" for number in range(20)]
    fleet = create_fleet("home", *far, sources=sources, regions=regions)
    fleet.record_report(create_report("home"))
    for node_id in far:
        fleet.record_report(create_report(node_id, "enam"))
    session = replace(NEED, session=7, num_prompt_bytes=400, num_prompt_tokens=100)
    assert fleet.plan(session).node_id == "home"  # the control
    first = choose_first_place(8, [NodeId(node_id) for node_id in far])
    plan = fleet.plan(replace(prefer("enam", need=session), session=8))
    assert (plan.node_id, plan.pick) == (first, Pick.SESSION)
    lengths = {"num_prompt_bytes": 40_000, "num_prompt_tokens": 10_000}
    keys = replace(NEED, prefix_keys=tuple(range(1, 30)), **lengths)
    fleet.locality.note_sent(keys, NodeId("home"), NOW_S)
    fleet.locality.note_sent(keys, NodeId("far13"), NOW_S)
    assert fleet.plan(keys).node_id == "home"  # the control
    assert fleet.plan(prefer("enam", need=keys)).node_id == "far13"


def test_a_place_at_one_node_is_taken_there_or_not_at_all() -> None:
    sources = Sources(monotonic_s=lambda: NOW_S, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("home", "far", sources=sources)
    fleet.record_report(create_report("home"))
    fleet.record_report(create_report("far", "enam"))
    need = prefer("enam")
    assert fleet.plan(need).node_id == "far"
    assert fleet.plan(need, at=NodeId("home")).node_id == "home"


def test_an_explanation_says_how_many_groups_had_no_room() -> None:
    full = replace(FAR, loads={MODEL: FULL})
    spilled = choose(HOME, NEXT, full, need=prefer("enam", "eeur"), latencies_s=LATENCIES_S)
    assert b"; spilled=1" in format_explanation(spilled)
    assert b"spilled" not in format_explanation(choose(HOME, FAR, need=prefer("enam")))


def test_who_had_no_room_for_one_group_is_not_asked_again_for_the_next() -> None:
    looks = Counter[NodeId]()

    class Watched(dict[NodeId, NodeSnapshot]):
        def __getitem__(self, node_id: NodeId) -> NodeSnapshot:
            looks[node_id] += 1
            return super().__getitem__(node_id)

    crowd = [create_node(f"n{n}", "enam", loads={MODEL: FULL}) for n in range(30)]
    state = create_state([HOME, NEXT, *crowd], latencies_s=LATENCIES_S)
    state = replace(state, nodes=Watched(state.nodes))
    need = prefer("enam", "enam,apac", "eeur")
    plan = choose_node(state, need, lambda count: count - 1)
    assert (plan.node_id, plan.num_spilled) == ("next", 2)
    assert {looks[node.node_id] for node in crowd} == {1}
