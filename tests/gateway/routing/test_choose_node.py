"""The choice of a node: the law first, then the least loaded, and a reason for every refusal."""

import math
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
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
from gateway.routing.choose_node import MAX_LOOKED_AT
from gateway.routing.route_plan import (
    LAST_RESORTS,
    Hints,
    NodeSnapshot,
    Pick,
    Rejection,
    RouteNeed,
    RoutePlan,
)
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
    assert [name for name, _ in DEFECTS] == [
        r for r in Rejection if r is not Rejection.OTHER_REVISION
    ][: len(DEFECTS)]


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
        create_node("c", loads={MODEL: create_load(running=1)}),
        create_node("d", loads={MODEL: create_load(running=1)}),
    ]
    plan = choose(*nodes)
    assert (plan.node_id, plan.pick, plan.num_seen) == ("c", "cost", 4)
    assert plan.rejected == ()


def test_what_was_sent_since_the_last_report_counts_as_load() -> None:
    nodes = [create_node("a"), create_node("b", loads={MODEL: create_load(running=1)})]
    assert choose(*nodes).node_id == "a"
    assert choose(*nodes, sent={"a": 2}).node_id == "b"


def test_what_was_sent_fills_a_node_up_before_it_says_so() -> None:
    with pytest.raises(PoolSaturated):
        choose(create_node("a"), sent={"a": BOUNDS.max_waiting_per_model})


def test_a_cold_node_is_the_last_resort_and_no_more() -> None:
    cold = create_node("cold", loads={MODEL: create_load(is_ready=False)})
    busy = create_node("busy", loads={MODEL: create_load(running=100)})
    plan = choose(cold, busy)
    assert plan.node_id == "busy"
    assert plan.rejected == (("cold", Rejection.MODEL_NOT_READY),)
    assert choose(cold, create_node("away", is_connected=False)).node_id == "cold"


@pytest.mark.parametrize("reason", [Rejection.BREAKER_OPEN, Rejection.ON_PROBATION])
def test_a_node_that_has_failed_lately_is_the_last_resort(reason: Rejection) -> None:
    busy = create_node("busy", loads={MODEL: create_load(running=100)})
    plan = choose(create_node("bad"), busy, troubled={"bad": reason})
    assert (plan.node_id, plan.rejected) == ("busy", (("bad", reason),))
    assert choose(create_node("bad"), troubled={"bad": reason}).node_id == "bad"
    assert choose(create_node("bad"), busy).node_id == "bad"  # the control


def test_whoever_will_not_wait_is_sent_only_where_nobody_waits() -> None:
    need = msgspec.structs.replace(NEED, rejects_busy=True)
    queue = create_node("queue", loads={MODEL: create_load(waiting=1)})
    slow = create_node("slow", loads={MODEL: create_load(running=1000)})
    assert choose(queue, slow).node_id == "queue"  # the control
    assert choose(queue, slow, need=need).node_id == "slow"
    with pytest.raises(PoolSaturated):
        choose(queue, need=need)


def test_half_an_answer_goes_on_only_with_the_same_weights() -> None:
    need = msgspec.structs.replace(NEED, revision="r2")
    with pytest.raises(NoEndpoint):
        choose(create_node("a"), need=need)
    newer = msgspec.structs.replace(create_card(), revision="r2")
    plan = choose(create_node("a"), create_node("b", cards={MODEL: newer}), need=need)
    assert (plan.node_id, plan.rejected) == ("b", (("a", Rejection.OTHER_REVISION),))


# -- seconds -------------------------------------------------------------------------------------

LONG = msgspec.structs.replace(NEED, num_prompt_tokens=8000, num_prompt_bytes=32_000)


def test_a_queue_is_as_long_as_the_node_is_slow() -> None:
    fast = create_load(num_queued_tokens=9000, prefill_tokens_per_s=20_000.0)
    slow = create_load(num_queued_tokens=3000, prefill_tokens_per_s=2_000.0)
    nodes = create_node("slow", loads={MODEL: slow}), create_node("fast", loads={MODEL: fast})
    assert choose(*nodes, need=LONG).node_id == "fast"


def test_a_warm_cache_wins_until_its_queue_costs_more_than_it_saves() -> None:
    def choose_among(queued_at_warm: int) -> RoutePlan:
        warm = create_node("warm", loads={MODEL: create_load(num_queued_tokens=queued_at_warm)})
        hints = Hints((NodeId("warm"),), lambda node_id: 16_000 if node_id == "warm" else 0)
        return choose(create_node("cold"), warm, need=LONG, hints=hints)

    plan = choose_among(3_900)
    assert (plan.node_id, plan.pick) == ("warm", Pick.PREFIX)
    assert (plan.num_cached_tokens, plan.num_new_tokens) == (4000, 4000)
    assert choose_among(4_100).node_id == "cold"


def test_full_memory_costs_more_and_more() -> None:
    nodes = [
        create_node("full", loads={MODEL: create_load(num_free_blocks=2)}),
        create_node("used", loads={MODEL: create_load(running=8, num_free_blocks=60)}),
    ]
    assert choose(*nodes).node_id == "used"


def test_a_far_region_is_used_when_the_near_one_takes_longer_than_the_way() -> None:
    def choose_when(queued_near: int) -> str:
        near = create_node("near", loads={MODEL: create_load(num_queued_tokens=queued_near)})
        far = create_node("far", "enam")
        return choose(near, far, latencies_s={"enam": 0.1}).node_id

    assert choose_when(150) == "near"
    assert choose_when(250) == "far"


def test_farther_regions_are_not_looked_at_when_they_cannot_be_better() -> None:
    near = [create_node(f"near-{i}") for i in range(12)]
    far = [create_node(f"far-{i}", "enam") for i in range(12)]
    plan = choose(*near, *far, latencies_s={"enam": 10.0})
    assert plan.region == "weur"
    assert plan.num_seen == 1  # one was drawn again and again
    full = [replace(node, loads={MODEL: FULL}) for node in near]
    assert choose(*full, *far, latencies_s={"enam": 10.0}).region == "enam"


def test_the_one_good_node_among_many_is_found_even_if_it_is_not_drawn() -> None:
    nodes = [create_node(f"n{i}", is_draining=i != 3) for i in range(40)]
    assert choose(*nodes).node_id == "n3"


# -- sessions ------------------------------------------------------------------------------------


def test_a_session_stays_where_it_was_unless_that_is_far_busier_than_the_others() -> None:
    def choose_when(used_blocks: int) -> RoutePlan:
        own = create_load(num_blocks=10_000, num_free_blocks=10_000 - used_blocks)
        other = create_load(num_blocks=10_000, num_free_blocks=9_000)
        nodes = [create_node("own", loads={MODEL: own})]
        nodes += [create_node(f"n{i}", loads={MODEL: other}) for i in range(3)]
        return choose(*nodes, hints=Hints(pinned=NodeId("own")))

    plan = choose_when(1_200)
    assert (plan.node_id, plan.pick) == ("own", Pick.SESSION)
    assert choose_when(3_000).node_id != "own"


def test_a_session_moves_when_its_node_is_in_trouble_or_abroad() -> None:
    hints = Hints(pinned=NodeId("own"))
    other = create_node("other")
    assert choose(create_node("own"), other, hints=hints).node_id == "own"  # the control
    assert choose(create_node("own", is_draining=True), other, hints=hints).node_id == "other"
    assert choose(create_node("own", "enam"), other, hints=hints, need=BOUND).node_id == "other"
    gone = Hints(pinned=NodeId("nobody"))
    assert choose(other, hints=gone).node_id == "other"


# -- all of it at once ---------------------------------------------------------------------------

NAMES = ("weur", "enam", "apac", "weur-1", "")
REGIONS = st.sampled_from([RegionId(name) for name in NAMES])
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
        cards={
            name: msgspec.structs.replace(
                create_card(name), revision=draw(st.sampled_from(["r1", "r2"]))
            )
            for name in models
        },
        loads={
            name: create_load(
                name,
                running=draw(st.integers(0, 3)),
                waiting=draw(st.integers(0, 12)),
                is_ready=draw(st.booleans()),
                num_free_blocks=draw(st.sampled_from([0, 50, 100])),
                num_queued_tokens=draw(st.sampled_from([0, 10, 100_000])),
            )
            for name in models
        },
    )


@st.composite
def draw_fleet(draw: st.DrawFn) -> tuple[NodeSnapshot, ...]:
    """A handful of nodes, or more than are all looked at."""
    count = draw(st.sampled_from([1, 3, 10]))
    return tuple(draw(draw_node(f"node-{index}")) for index in range(count))


NODE_IDS = st.sampled_from([NodeId(f"node-{index}") for index in range(21)])
NEEDS = st.builds(
    RouteNeed,
    model=st.sampled_from([MODEL, OTHER_MODEL]),
    allowed_regions=st.none() | st.lists(REGIONS, max_size=2).map(tuple),
    tried=st.frozensets(NODE_IDS, max_size=3),
    revision=st.sampled_from([None, None, "r1"]),
    rejects_busy=st.booleans(),
    num_prompt_bytes=st.just(4000),
    num_prompt_tokens=st.integers(0, 5000),
    num_output_tokens=st.integers(0, 5000),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    nodes=draw_fleet(),
    need=NEEDS,
    sent=st.dictionaries(NODE_IDS, st.integers(0, 12)),
    troubled=st.dictionaries(
        NODE_IDS, st.sampled_from([Rejection.BREAKER_OPEN, Rejection.ON_PROBATION])
    ),
    latencies_s=st.fixed_dictionaries({name: st.floats(0, 1) for name in NAMES}),
    hints=st.builds(
        Hints,
        holders=st.lists(NODE_IDS, max_size=3),
        measure_cached=st.just(lambda node_id: len(node_id) * 100),
        pinned=st.none() | NODE_IDS,
    ),
    seed=st.integers(0, 2**32),
)
def test_no_plan_ever_leaves_the_law_and_the_chosen_node_passes_every_filter(
    nodes: tuple[NodeSnapshot, ...],
    need: RouteNeed,
    sent: dict[str, int],
    troubled: dict[str, Rejection],
    latencies_s: dict[str, float],
    hints: Hints,
    seed: int,
) -> None:
    def is_lawful(node: NodeSnapshot) -> bool:
        """The law anew, in one breath."""
        allowed = need.allowed_regions
        return node.region is not None and (allowed is None or node.region in allowed)

    def fits(node: NodeSnapshot) -> bool:
        """The hard filters, likewise."""
        load, card = node.loads.get(need.model), node.cards.get(need.model)
        num_sent = sent.get(node.node_id, 0) if need.model == MODEL else 0
        return (
            is_lawful(node)
            and load is not None
            and card is not None
            and need.revision in (None, card.revision)
            and node.is_connected
            and not node.is_draining
            and NOW_S - node.reported_s <= BOUNDS.report_ttl_s
            and load.num_waiting + num_sent < BOUNDS.max_waiting_per_model
            and not (need.rejects_busy and load.num_waiting)
            and node.node_id not in need.tried
        )

    good = {node.node_id for node in nodes if fits(node)}
    better = {
        node.node_id
        for node in nodes
        if node.node_id in good and node.loads[need.model].is_ready and node.node_id not in troubled
    }
    rng = random.Random(seed)
    facts: dict[str, Any] = {"sent": sent, "troubled": troubled, "latencies_s": latencies_s}
    try:
        plan = choose(*nodes, need=need, hints=hints, draw=rng.randrange, **facts)
    except ServiceError as error:
        assert not good
        holders = [node for node in nodes if need.model in node.cards]
        if isinstance(error, UnknownModel | PoolSaturated):
            # Neither may hide that the law is what stands in the way.
            assert not holders or any(is_lawful(node) for node in holders)
        return
    assert plan.node_id in good
    assert need.allowed_regions is None or plan.region in need.allowed_regions
    assert plan.region == next(node.region for node in nodes if node.node_id == plan.node_id)
    assert plan.node_id in better or not better
    refused = {node_id for node_id, why in plan.rejected if why not in LAST_RESORTS}
    assert refused.isdisjoint(good)
    if len(nodes) <= MAX_LOOKED_AT:
        assert refused == {node.node_id for node in nodes} - good
