"""The choice of a node: the law first, then the least loaded, and a reason for every refusal."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import (
    ModelFailed,
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
)
from contracts.ids import ModelName, NodeId, RegionId
from gateway.routing.choose_node import NodeSnapshot, Rejection, RouteNeed, choose_node
from tests.gateway.routing.fleet_words import (
    BOUNDS,
    MODEL,
    NEED,
    NOW_S,
    OTHER_MODEL,
    allow,
    choose,
    create_card,
    create_load,
    create_node,
    create_silent_node,
)

STALE_S = NOW_S - BOUNDS.report_ttl_s - 0.001
FULL = create_load(waiting=BOUNDS.max_waiting_per_model)
ABROAD: dict[str, Any] = {"region": RegionId("enam")}
EMPTY: dict[str, Any] = {"cards": {}, "loads": {}}
DEFECTS: list[tuple[Rejection, dict[str, Any]]] = [
    (Rejection.UNKNOWN, {"region": None}),
    (Rejection.RESIDENCY, ABROAD),
    (Rejection.MODEL_ABSENT, EMPTY),
    (Rejection.UNREACHABLE, {"is_connected": False}),
    (Rejection.DRAINING, {"is_draining": True}),
    (Rejection.REPORT_STALE, {"reported_s": STALE_S}),
    (Rejection.SATURATED, {"loads": {MODEL: FULL}}),
]
BOUND = allow("weur")


def find_reasons(*nodes: NodeSnapshot, need: RouteNeed = BOUND) -> list[Rejection]:
    """Why each of `nodes` was passed over for a good one."""
    plan = choose(*nodes, create_node("good"), need=need)
    assert plan.node_id == "good"
    return [reason for _, reason in plan.rejected]


@pytest.mark.parametrize(("reason", "defect"), DEFECTS, ids=[name for name, _ in DEFECTS])
def test_each_defect_has_its_reason(reason: Rejection, defect: dict[str, Any]) -> None:
    assert find_reasons(create_node("bad", **defect)) == [reason]


@pytest.mark.parametrize("first", range(len(DEFECTS)))
def test_the_filters_come_in_the_order_of_the_reasons(first: int) -> None:
    """A node with every defect from `first` on is told the first of them."""
    worst: dict[str, Any] = {}
    for _, defect in reversed(DEFECTS[first:]):
        worst |= defect
    node = create_node("bad", **worst)
    need = msgspec.structs.replace(BOUND, tried=frozenset({NodeId("bad")}))
    assert find_reasons(node, need=need) == [DEFECTS[first][0]]
    assert [name for name, _ in DEFECTS] == list(Rejection)[: len(DEFECTS)]


def test_a_node_that_has_failed_this_request_is_left_out() -> None:
    need = msgspec.structs.replace(NEED, tried=frozenset({NodeId("bad")}))
    assert find_reasons(create_node("bad"), need=need) == [Rejection.TRIED]


def test_a_report_is_good_until_its_very_end() -> None:
    node = create_node("a", reported_s=NOW_S - BOUNDS.report_ttl_s)
    assert choose(node).node_id == "a"


# -- the law -------------------------------------------------------------------------------------


def test_data_stays_in_its_regions_however_busy_they_are() -> None:
    busy = create_node("home", loads={MODEL: create_load(running=500, waiting=9)})
    idle = create_node("abroad", "enam")
    assert choose(idle, busy, need=BOUND).node_id == "home"
    # The control: without the rule the idle one is chosen.
    assert choose(idle, busy).node_id == "abroad"


@pytest.mark.parametrize("need", [allow("apac"), allow("weur-1"), allow("WEUR"), allow()])
def test_no_lawful_region_is_a_residency_error_and_never_a_fallback(need: RouteNeed) -> None:
    nodes = [create_node("a"), create_node("b", "enam")]
    with pytest.raises(ResidencyViolation):
        choose(*nodes, need=need)
    assert choose(*nodes).node_id == "a"  # the control


def test_none_allows_every_region_and_an_empty_rule_none() -> None:
    assert choose(create_node("a", "anywhere"), need=RouteNeed(MODEL, None)).region == "anywhere"
    with pytest.raises(ResidencyViolation):
        choose(create_node("a", "anywhere"), need=RouteNeed(MODEL, ()))


@pytest.mark.parametrize(("reason", "defect"), DEFECTS[3:], ids=[name for name, _ in DEFECTS[3:]])
def test_a_lawful_node_in_trouble_opens_no_door_abroad(
    reason: Rejection, defect: dict[str, Any]
) -> None:
    home, abroad = create_node("home", **defect), create_node("abroad", "enam")
    with pytest.raises((NoEndpoint, PoolSaturated)):
        choose(home, abroad, need=BOUND)
    assert choose(home, abroad).node_id == "abroad"  # the control


def test_a_model_that_only_lives_abroad_is_a_residency_error() -> None:
    home, abroad = create_node("home", **EMPTY), create_node("abroad", "enam")
    with pytest.raises(ResidencyViolation):
        choose(home, abroad, need=BOUND)


def test_a_node_of_no_known_region_is_never_lawful() -> None:
    """It cannot happen that such a node has models; if it did, it would still get nothing."""
    stranger = create_node("stranger", None)
    for need in (NEED, BOUND, allow("")):
        with pytest.raises(ServiceError):
            choose(stranger, need=need)
    assert find_reasons(stranger, need=NEED) == [Rejection.UNKNOWN]


# -- empty choices -------------------------------------------------------------------------------


def test_a_model_is_unknown_only_once_every_node_has_spoken() -> None:
    made_up = RouteNeed(ModelName("@made/up"), None)
    with pytest.raises(UnknownModel) as caught:
        choose(create_node("a"), need=made_up)
    assert caught.value.param == "model"
    with pytest.raises(NoEndpoint):
        choose(create_node("a"), create_silent_node("b"), need=made_up)


def test_a_model_that_failed_to_load_is_told_apart_from_one_that_nobody_knows() -> None:
    broken = create_node("a", cards={}, loads={}, failed={MODEL: "/secret/path is damaged"})
    with pytest.raises(ModelFailed) as caught:
        choose(broken)
    assert "secret" not in caught.value.message
    assert choose(broken, create_node("b")).node_id == "b"  # one node is enough
    abroad = create_node("c", "enam", cards={}, loads={}, failed={MODEL: "damaged"})
    with pytest.raises(UnknownModel):  # the control: whoever may not use a node hears nothing of it
        choose(abroad, create_node("d", cards={}, loads={}), need=allow("weur"))


def test_a_silent_node_may_be_the_lawful_one_unless_nowhere_is_lawful() -> None:
    abroad, silent = create_node("a", "enam"), create_silent_node("b")
    with pytest.raises(NoEndpoint):
        choose(abroad, silent, need=BOUND)
    for need, nodes in ((allow(), [abroad, silent]), (BOUND, [abroad])):
        with pytest.raises(ResidencyViolation):
            choose(*nodes, need=need)


def test_a_model_stays_known_while_its_node_is_away() -> None:
    with pytest.raises(NoEndpoint):
        choose(create_node("a", is_connected=False))


@pytest.mark.parametrize(
    "defect", [{"loads": {MODEL: FULL}}, {"reported_s": STALE_S}], ids=["full", "stale"]
)
def test_full_and_silent_nodes_are_lack_of_capacity(defect: dict[str, Any]) -> None:
    with pytest.raises(PoolSaturated):
        choose(create_node("a", **defect), create_node("b", is_draining=True))


def test_a_fleet_without_nodes_serves_nobody_and_breaks_nothing() -> None:
    with pytest.raises(ServiceError):
        choose()


def test_a_card_without_a_load_is_a_model_that_is_not_there() -> None:
    with pytest.raises(NoEndpoint):
        choose(create_node("a", loads={}))
    assert find_reasons(create_node("a", cards={})) == [Rejection.MODEL_ABSENT]


# -- load ----------------------------------------------------------------------------------------


def test_the_least_loaded_is_chosen_and_the_first_of_equals() -> None:
    nodes = [
        create_node("a", loads={MODEL: create_load(running=2)}),
        create_node("b", loads={MODEL: create_load(running=1, waiting=1)}),
        create_node("c", loads={MODEL: create_load(waiting=1)}),
        create_node("d", loads={MODEL: create_load(running=1)}),
    ]
    plan = choose(*nodes)
    assert (plan.node_id, plan.load) == ("c", 1)
    assert plan.rejected == ()


def test_what_was_sent_since_the_last_report_counts_as_load() -> None:
    nodes = [create_node("a"), create_node("b", loads={MODEL: create_load(running=1)})]
    assert choose(*nodes).node_id == "a"
    sent = {(NodeId("a"), MODEL): 2}
    assert choose(*nodes, dispatched=sent).node_id == "b"
    other = {(NodeId("a"), OTHER_MODEL): 2}
    assert choose(*nodes, dispatched=other).node_id == "a"  # another model's requests do not


def test_what_was_sent_fills_a_node_up_before_it_says_so() -> None:
    sent = {(NodeId("a"), MODEL): BOUNDS.max_waiting_per_model}
    with pytest.raises(PoolSaturated):
        choose(create_node("a"), dispatched=sent)


def test_a_cold_node_is_the_last_resort_and_no_more() -> None:
    cold = create_node("cold", loads={MODEL: create_load(is_ready=False)})
    busy = create_node("busy", loads={MODEL: create_load(running=100)})
    plan = choose(cold, busy)
    assert plan.node_id == "busy"
    assert plan.rejected == (("cold", Rejection.MODEL_NOT_READY),)
    assert choose(cold, create_node("away", is_connected=False)).node_id == "cold"


# -- all of it at once ---------------------------------------------------------------------------

REGIONS = st.sampled_from([RegionId("weur"), RegionId("enam"), RegionId("apac")])
MODELS = st.sets(st.sampled_from([MODEL, OTHER_MODEL]))


@st.composite
def draw_node(draw: st.DrawFn, node_id: str) -> NodeSnapshot:
    """A node in any state."""
    models = draw(MODELS)
    return create_node(
        node_id,
        draw(st.none() | REGIONS),
        is_connected=draw(st.booleans()),
        is_draining=draw(st.sampled_from([False, False, True])),
        reported_s=draw(st.sampled_from([NOW_S, STALE_S, -math.inf])),
        cards={name: create_card(name) for name in models},
        loads={
            name: create_load(
                name,
                running=draw(st.integers(0, 3)),
                waiting=draw(st.integers(0, 12)),
                is_ready=draw(st.booleans()),
            )
            for name in models
        },
    )


NODES = st.tuples(*[draw_node(f"node-{index}") for index in range(4)])
NODE_IDS = st.sampled_from([NodeId(f"node-{index}") for index in range(4)])


@given(
    nodes=NODES,
    regions=st.none() | st.lists(REGIONS, max_size=2).map(tuple),
    tried=st.frozensets(NODE_IDS, max_size=2),
    sent=st.dictionaries(st.tuples(NODE_IDS, st.just(MODEL)), st.integers(0, 12)),
)
def test_the_chosen_node_passes_every_filter_and_every_other_has_its_reason(
    nodes: tuple[NodeSnapshot, ...],
    regions: tuple[RegionId, ...] | None,
    tried: frozenset[NodeId],
    sent: dict[tuple[NodeId, ModelName], int],
) -> None:
    need = RouteNeed(MODEL, regions, tried)

    def fits(node: NodeSnapshot) -> bool:
        """The filters anew, in one breath."""
        load = node.loads.get(MODEL)
        return (
            node.region is not None
            and (regions is None or node.region in regions)
            and load is not None
            and node.is_connected
            and not node.is_draining
            and NOW_S - node.reported_s <= BOUNDS.report_ttl_s
            and load.num_waiting + sent.get((node.node_id, MODEL), 0) < BOUNDS.max_waiting_per_model
            and node.node_id not in tried
        )

    good = {node.node_id for node in nodes if fits(node)}
    try:
        plan = choose_node(nodes, sent, need, BOUNDS, NOW_S)
    except ServiceError:
        assert not good
        return
    assert plan.node_id in good
    refused = {node_id for node_id, why in plan.rejected if why is not Rejection.MODEL_NOT_READY}
    assert refused == {node.node_id for node in nodes} - good
    ready = {node.node_id for node in nodes if node.node_id in good and node.loads[MODEL].is_ready}
    assert not ready or plan.node_id in ready
