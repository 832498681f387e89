"""Any fleet, any need: the law holds, and the chosen nodes pass every filter."""

import random
from collections import Counter
from typing import Any
from unittest.mock import Mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.errors import (
    InvariantBroken,
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
)
from contracts.fleet import ModelCard
from contracts.ids import NodeId, RegionId
from contracts.node_roles import NodeRole
from gateway.routing.choose_node import choose_node
from gateway.routing.hand_over_meter import HandOverMeter
from gateway.routing.prefill_choice import choose_prefill
from gateway.routing.room import count_room
from gateway.routing.route_plan import (
    TROUBLES,
    FleetState,
    Hints,
    NodeSnapshot,
    PrefillPlan,
    Rejection,
    RouteNeed,
    RoutePlan,
    Sent,
)
from gateway.routing.search import MAX_LOOKED_AT
from tests.gateway.routing.fleet_draws import (
    FAR_S,
    NAMES,
    NODE_IDS,
    PARTED_SCENES,
    SCENES,
    SENT,
    Scene,
)
from tests.gateway.routing.fleet_words import BOUNDS, MODEL, NOW_S, create_state

LAST_RESORTS = TROUBLES | {Rejection.MODEL_NOT_READY, Rejection.PREFILL_ONLY}
NUM_NEAR = 4
"""Regions that are all visited, if need be."""
QUICK = HandOverMeter()
for _ in range(300):
    QUICK.note(1, 0.0, 0.0)
    QUICK.note(10_000, 1e-6, 0.0)


def is_lawful(node: NodeSnapshot, need: RouteNeed) -> bool:
    """The law anew, in one breath."""
    allowed, laws = need.allowed_regions, need.jurisdictions
    may = node.region is not None and (allowed is None or node.region in allowed)
    return may and (laws is None or node.jurisdiction in laws)


def takes_adapter(card: ModelCard, need: RouteNeed) -> bool:
    """The model computes adapters of that rank there, if there is one."""
    return need.adapter is None or card.max_adapter_rank >= need.adapter.rank


def is_able(node: NodeSnapshot, need: RouteNeed, sent: dict[str, int]) -> bool:
    """The other hard filters, likewise."""
    load, card = node.loads.get(need.model), node.cards.get(need.model)
    num_sent = sent.get(node.node_id, 0) if need.model == MODEL else 0
    return (
        load is not None
        and card is not None
        and need.revision in (None, card.revision)
        and node.is_connected
        and not node.is_draining
        and not node.is_drained
        and not (need.leaves_nothing and card.may_keep)
        and takes_adapter(card, need)
        and card.max_prompts >= need.num_prompts
        and (card.takes_bad_words or not need.has_bad_words)
        and card.context_window >= need.min_context
        and NOW_S - node.reported_s <= BOUNDS.report_ttl_s
        and count_room(load, Sent(num_sent), BOUNDS) > 0
        and not (need.rejects_busy and load.num_waiting)
        and node.node_id not in need.tried
    )


def may_compute_prompts(node: NodeSnapshot, need: RouteNeed, plan: RoutePlan) -> bool:
    """True for a node that is there for prompts and has the weights of the one that answers."""
    card, load = node.cards.get(need.model), node.loads.get(need.model)
    is_like_it = card is not None and card.revision == plan.card.revision
    return node.role is NodeRole.PREFILL and is_like_it and load is not None and load.is_ready


def find_wanted(
    nodes: tuple[NodeSnapshot, ...], need: RouteNeed, better: set[NodeId]
) -> frozenset[RegionId]:
    """The first preferred group with a node in order, and with room; empty where there is none."""
    for group in need.preferred:
        if any(node.node_id in better and node.region in group for node in nodes):
            return group
    return frozenset()


def check_refusal(error: ServiceError, nodes: tuple[NodeSnapshot, ...], need: RouteNeed) -> None:
    """No error hides that the law is what stands in the way."""
    assert not isinstance(error, InvariantBroken)
    holders = [node for node in nodes if need.model in node.cards]
    if isinstance(error, UnknownModel | PoolSaturated):
        assert not holders or any(is_lawful(node, need) for node in holders)
    is_hopeless = need.allowed_regions == () and not need.jurisdictions
    is_known = is_hopeless or all(node.region is not None for node in nodes)
    if need.is_bound and is_known:
        takers = [node for node in holders if takes_adapter(node.cards[need.model], need)]
        is_empty = not any(is_lawful(node, need) for node in takers or holders or nodes)
        is_disputed = is_empty and any(node.region in need.disputed for node in takers)
        assert isinstance(error, ResidencyViolation) is (is_empty and not is_disputed)
        assert isinstance(error, NoEndpoint) or not is_disputed


def find_home(need: RouteNeed, plan: RoutePlan) -> frozenset[RegionId] | None:
    """The preferred regions that the answer does not leave, nor may its prompt; None: no such."""
    return next((group for group in need.preferred if plan.region in group), None)


def check_prefill(
    prefill: PrefillPlan, plan: RoutePlan, state: FleetState, need: RouteNeed, good: set[NodeId]
) -> None:
    """Who computes the prompt is held to all that the one who answers is, and to more."""
    node, home = state.nodes[prefill.node_id], find_home(need, plan)
    assert need.may_move
    assert is_lawful(node, need)
    assert node.node_id in good - {plan.node_id}
    assert (node.role, node.region) == (NodeRole.PREFILL, prefill.region)
    assert node.loads[need.model].is_ready
    assert node.node_id not in state.troubled
    assert prefill.card.revision == plan.card.revision
    assert prefill.endpoint == node.kv_endpoints[need.model]
    assert prefill.target == state.nodes[plan.node_id].kv_endpoints[need.model]
    assert prefill.endpoint.layout == prefill.target.layout
    assert home is None or prefill.region in home


def check_route(
    scene: Scene,
    sent: dict[str, int],
    troubled: dict[str, Rejection],
    latencies_s: dict[str, float],
    hints: Hints,
    seed: int,
) -> None:
    """Chooses for the need of `scene` and holds the choice against what is said anew here."""
    nodes, need = scene
    good = {node.node_id for node in nodes if is_lawful(node, need) and is_able(node, need, sent)}
    better = {
        node.node_id
        for node in nodes
        if node.node_id in good
        and node.find_wake_s(need.model) is not None
        and node.node_id not in troubled
        and node.role is not NodeRole.PREFILL
    }
    rng = random.Random(seed)
    facts: dict[str, Any] = {"troubled": troubled, "latencies_s": latencies_s | FAR_S}
    try:
        state = create_state(nodes, model=need.model, sent=sent, **facts)
        plan = choose_node(state, need, rng.randrange, hints)
    except ServiceError as error:
        assert not good
        check_refusal(error, nodes, need)
        return
    assert plan.node_id in good
    assert need.allowed_regions is None or plan.region in need.allowed_regions
    assert plan.region == next(node.region for node in nodes if node.node_id == plan.node_id)
    assert plan.node_id in better or not better
    wanted = find_wanted(nodes, need, better)
    assert plan.region in wanted if wanted else plan.num_spilled == len(need.preferred)
    refused = {node_id for node_id, why in plan.rejected if why not in LAST_RESORTS}
    assert refused.isdisjoint(good)
    if len(nodes) <= MAX_LOOKED_AT and not wanted:
        assert refused == {node.node_id for node in nodes} - good
    prefill = choose_prefill(state, need, plan, QUICK, rng.randrange, hints)
    if prefill is not None:
        check_prefill(prefill, plan, state, need, good)
        assert not wanted or prefill.region in wanted


FACTS = {
    "sent": SENT,
    "troubled": st.dictionaries(
        NODE_IDS, st.sampled_from([Rejection.BREAKER_OPEN, Rejection.ON_PROBATION])
    ),
    "latencies_s": st.fixed_dictionaries({name: st.floats(0, 1) for name in NAMES}),
    "hints": st.builds(
        Hints,
        holders=st.lists(NODE_IDS, max_size=3),
        prompt_holders=st.lists(NODE_IDS, max_size=3),
        measure_cached=st.just(lambda node_id: len(node_id) * 100),
        pinned=st.none() | NODE_IDS,
    ),
    "seed": st.integers(0, 2**32),
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(scene=SCENES, **FACTS)
def test_no_plan_ever_leaves_the_law_and_the_chosen_nodes_pass_every_filter(
    scene: Scene, **facts: Any
) -> None:
    check_route(scene, **facts)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(scene=PARTED_SCENES, **FACTS)
def test_no_prompt_leaves_the_law_or_what_is_preferred_where_others_compute_it(
    scene: Scene, **facts: Any
) -> None:
    check_route(scene, **facts)


def count_scene(seen: Counter[str], scene: Scene, sent: dict[str, int]) -> None:
    """Adds to `seen` what the scene tries."""
    nodes, need = scene
    able = [node for node in nodes if is_able(node, need, sent)]
    num_lawful = sum(is_lawful(node, need) for node in able)
    seen["all"] += 1
    seen["served"] += num_lawful > 0
    seen["tempted"] += 0 < num_lawful < len(able)
    seen["kept away"] += num_lawful == 0 and len(able) > 0
    draw = Mock(side_effect=random.Random(seen["all"]).randrange)
    state = create_state(nodes, model=need.model, sent=sent, latencies_s=FAR_S)
    try:
        plan = choose_node(state, need, draw)
    except ServiceError as error:
        seen["disputed"] += "differ on whose law" in error.message
        return
    seen["drawn"] += draw.called
    seen["far"] += plan.region in list_far(state, need)
    prefill = choose_prefill(state, need, plan, QUICK, draw)
    seen["handed over"] += prefill is not None
    home = find_home(need, plan)
    idle = [node for node in able if need.may_move and may_compute_prompts(node, need, plan)]
    lawful = [node for node in idle if is_lawful(node, need)]
    seen["prompts kept away"] += len(lawful) < len(idle)
    seen["prompts at home"] += any(home is not None and node.region not in home for node in lawful)


def list_far(state: FleetState, need: RouteNeed) -> set[RegionId]:
    """Regions behind those that are all visited."""
    allowed = need.allowed_regions
    regions = [ring.region for ring in state.rings if allowed is None or ring.region in allowed]
    return set(regions[NUM_NEAR:])


def count_scenes(scenes: st.SearchStrategy[Scene], num_examples: int) -> Counter[str]:
    """What `scenes` try, so many times."""
    seen = Counter[str]()

    @settings(max_examples=num_examples, derandomize=True, database=None, deadline=None)
    @given(scene=scenes, sent=SENT)
    def look_at(scene: Scene, sent: dict[str, int]) -> None:
        count_scene(seen, scene, sent)

    look_at()
    return seen


def test_the_fleets_that_are_drawn_try_the_router() -> None:
    """The control: many can serve, and many of those have a node that only the law keeps away; far
    regions are chosen, some of many nodes drawn, and laws disputed.
    """
    seen = count_scenes(SCENES, 400)
    assert seen["served"] > seen["all"] / 8
    assert min(seen["tempted"], seen["kept away"]) > seen["all"] / 40
    assert min(seen["drawn"], seen["disputed"]) > seen["all"] / 20
    assert seen["far"] > seen["all"] / 100


def test_the_parted_fleets_that_are_drawn_try_the_choice_for_the_prompt() -> None:
    """The control: many prompts are handed over, and many have a node beside that one that only
    the law keeps away, or what the account prefers.
    """
    seen = count_scenes(PARTED_SCENES, 300)
    assert seen["handed over"] > seen["all"] / 5
    assert min(seen["prompts kept away"], seen["prompts at home"]) > seen["all"] / 10
