"""What a client is told when no node comes into question costs no look at each node of a fleet."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from contracts.adapters import AdapterRef
from contracts.errors import NoEndpoint, ResidencyViolation, ServiceError
from contracts.ids import NodeId, RegionId
from gateway.need_description import explain_refusal
from gateway.routing import choose_node as choosing
from gateway.routing import empty_choice
from gateway.routing.choose_node import choose_node
from gateway.routing.fleet import Fleet
from gateway.routing.kinds import pick_kinds
from gateway.routing.route_choice import MAX_EXPLAINED
from gateway.routing.route_plan import NodeSnapshot, RouteNeed, keep_only
from gateway.routing.search import Search
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import (
    FULL,
    MODEL,
    NOW_S,
    OTHER_MODEL,
    allow,
    create_card,
    create_fleet,
    create_node,
    create_report,
    create_silent_node,
    create_state,
)

NUM_NODES = 3000
NUM_REGIONS = 3
MADE_UP = allow("made-up")


class Looks:
    """Counts nodes that are looked at, in whatever way."""

    def __init__(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        looks, look_at, is_lawful = self, Search.look_at, empty_choice.is_lawful

        class Watched(dict[NodeId, NodeSnapshot]):
            def __iter__(self) -> Iterator[NodeId]:
                for node_id in super().__iter__():
                    looks.count += 1
                    yield node_id

            def values(self) -> Any:
                looks.count += len(self)
                return super().values()

        def look(search: Search, *arguments: Any) -> None:
            looks.count += 1
            look_at(search, *arguments)

        def ask(node: NodeSnapshot, need: RouteNeed) -> bool:
            looks.count += 1
            return is_lawful(node, need)

        monkeypatch.setattr(fleet, "_nodes", Watched(fleet.roster.nodes))
        monkeypatch.setattr(Search, "look_at", look)
        for module in (empty_choice, choosing):
            monkeypatch.setattr(module, "is_lawful", ask)


def create_adapter(rank: int) -> AdapterRef:
    """Any adapter of that rank."""
    return AdapterRef(weights_sha256=bytes(32), num_bytes=100, scale=2.0, rank=rank)


def create_large_fleet(num_nodes: int) -> Fleet:
    """So many nodes in a few regions, of which each has reported."""
    sources = Sources(lambda: NOW_S, lambda: 0.0, lambda _: 0)
    fleet = create_fleet(*(f"n{number}" for number in range(num_nodes)), sources=sources)
    for number in range(num_nodes):
        fleet.record_report(create_report(f"n{number}", f"r{number % NUM_REGIONS}"))
    return fleet


@pytest.mark.parametrize("num_nodes", [300, NUM_NODES])
def test_a_region_that_a_client_makes_up_costs_as_much_whatever_the_number_of_nodes(
    num_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = create_large_fleet(num_nodes)
    for number in range(num_nodes):  # what they say anew changes nothing
        report = create_report(f"n{number}", f"r{number % NUM_REGIONS}", running=1)
        if number == 1:
            with pytest.raises(ResidencyViolation):
                fleet.plan(MADE_UP)
        fleet.record_report(report)
    looks = Looks(fleet, monkeypatch)
    for _ in range(3):
        looks.count = 0
        with pytest.raises(ResidencyViolation):
            fleet.plan(MADE_UP)
        assert 0 < looks.count <= 10 * NUM_REGIONS


def test_once_a_node_is_of_another_kind_the_client_is_told_so() -> None:
    fleet = create_large_fleet(30)
    with pytest.raises(ResidencyViolation):
        fleet.plan(MADE_UP)
    assert fleet.plan(allow("r1")).region == "r1"
    fleet.record_report(replace(create_report("n7", "made-up"), models=(), loads=()))
    with pytest.raises(ResidencyViolation):  # it has not the model, where others do
        fleet.plan(MADE_UP)
    fleet.record_report(create_report("n7", "made-up"))
    fleet.record_link_lost(NodeId("n7"))
    with pytest.raises(NoEndpoint):
        fleet.plan(MADE_UP)


@pytest.mark.parametrize("regions", [("made-up",), ("r0",), None])
def test_an_explanation_looks_at_so_many_nodes_and_says_how_many_more_there_are(
    regions: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = create_large_fleet(NUM_NODES)
    need = RouteNeed(MODEL, None) if regions is None else allow(*regions)
    looks = Looks(fleet, monkeypatch)
    line = explain_refusal(fleet, replace(need, tried=frozenset(fleet.roster.nodes)))
    assert looks.count <= 3 * MAX_EXPLAINED
    reason = "residency" if regions == ("made-up",) else "tried"  # the law's own nodes first
    more = NUM_NODES - MAX_EXPLAINED
    assert (
        line == f"x-hearth-explain: pick=none; {reason}={MAX_EXPLAINED}; more={more}\r\n".encode()
    )


def test_an_explanation_of_a_small_fleet_is_of_all_its_nodes() -> None:
    line = explain_refusal(create_large_fleet(MAX_EXPLAINED), MADE_UP)
    assert line == f"x-hearth-explain: pick=none; residency={MAX_EXPLAINED}\r\n".encode()


def test_one_node_of_each_kind_tells_the_client_what_all_of_them_would() -> None:
    """Random fleets; the control is that errors of several sorts and texts come out."""
    draw = random.Random(1)
    told = set[str]()
    for _ in range(3000):
        nodes = [draw_node(draw, f"n{number}") for number in range(draw.randrange(12))]
        need = draw_need(draw)
        state = create_state(nodes, model=need.model)
        kinds = replace(state, list_kinds=lambda model, nodes=nodes: pick_kinds(model, nodes))
        assert len(pick_kinds(need.model, nodes)) <= len(nodes)
        states = [(state, kinds)]
        if nodes:
            one = draw.choice(nodes).node_id
            states.append((keep_only(state, one), keep_only(kinds, one)))
        for plain, short in states:
            expected, found = (find_outcome(each, need) for each in (plain, short))
            assert found == expected
            told.add(found)
    assert len(told) > 10


def find_outcome(state: Any, need: RouteNeed) -> str:
    """What is chosen, or said."""
    try:
        return choose_node(state, need, lambda _: 0).node_id
    except ServiceError as error:
        return f"{type(error).__name__}: {error.message}"


def draw_node(draw: random.Random, node_id: str) -> NodeSnapshot:
    """Any node, more often than not one that is no good."""
    if draw.random() < 0.1:
        return create_silent_node(node_id)
    cards = {
        model: replace(create_card(model), max_adapter_rank=draw.choice([0, 8, 16]))
        for model in (MODEL, OTHER_MODEL)
        if draw.random() < 0.5
    }
    return create_node(
        node_id,
        draw.choice(["weur", "eeur", "enam"]),
        jurisdiction=draw.choice(["eu", "us"]),
        cards=cards,
        loads=dict.fromkeys(cards, FULL) if draw.random() < 0.7 else {},
        failed={MODEL: "broken"} if draw.random() < 0.2 and MODEL not in cards else {},
        is_connected=draw.random() < 0.7,
    )


def draw_need(draw: random.Random) -> RouteNeed:
    """Any request."""
    regions = [RegionId(name) for name in ("weur", "eeur", "enam", "nowhere")]
    allowed = None
    if draw.random() < 0.7:
        allowed = tuple(draw.sample(regions, draw.randrange(3)))
    return RouteNeed(
        draw.choice([MODEL, OTHER_MODEL]),
        allowed,
        jurisdictions=draw.choice([None, frozenset({"eu"}), frozenset({"us"})]),
        disputed=frozenset(draw.sample(regions, draw.randrange(2))),
        adapter=draw.choice([None, None, create_adapter(8), create_adapter(32)]),
    )
