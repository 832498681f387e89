"""Any fleet, any need: the law holds, and the chosen nodes pass every filter."""

import math
import random
from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.adapters import AdapterRef
from contracts.errors import (
    InvariantBroken,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
)
from contracts.fleet import ModelCard
from contracts.ids import ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole
from contracts.placement import ModelPlacement, Tier
from gateway.routing.choose_node import choose_node
from gateway.routing.hand_over import HandOverMeter
from gateway.routing.prefill_choice import choose_prefill
from gateway.routing.room import count_room
from gateway.routing.route_plan import (
    LAST_RESORTS,
    Hints,
    NodeSnapshot,
    Rejection,
    RouteNeed,
    Sent,
)
from gateway.routing.search import MAX_LOOKED_AT
from tests.gateway.routing.fleet_words import (
    BOUNDS,
    MODEL,
    NOW_S,
    OTHER_MODEL,
    STALE_S,
    create_card,
    create_endpoint,
    create_load,
    create_node,
    create_state,
)

ADAPTER = AdapterRef(weights_sha256=b"1" * 32, num_bytes=100, scale=2.0, rank=8)
NAMES = ("weur", "enam", "apac", "weur-1", "")
REGIONS = st.sampled_from([RegionId(name) for name in ("weur", "enam", "weur", "enam", *NAMES)])
ALLOWED = st.sampled_from(["weur", "enam", "weur,apac", "apac", "weur-1", "enam,,weur-1"])
MODELS = st.sampled_from([{MODEL}, {MODEL}, {MODEL, OTHER_MODEL}, {OTHER_MODEL}, set[ModelName]()])
MOSTLY = st.sampled_from([True] * 7 + [False])
LAWS = st.sampled_from(["eu", "eu", "eu", "us"])
RARELY = MOSTLY.map(lambda value: not value)
ROLES = st.sampled_from([NodeRole.MIXED, NodeRole.MIXED, *NodeRole])
REPORTS = st.sampled_from([NOW_S] * 7 + [STALE_S, -math.inf])


@st.composite
def draw_node(draw: st.DrawFn, node_id: str) -> NodeSnapshot:
    """A node in any state."""
    models = draw(MODELS)
    return create_node(
        node_id,
        None if draw(RARELY) and draw(RARELY) else draw(REGIONS),
        is_connected=draw(MOSTLY),
        role=draw(ROLES),
        jurisdiction=draw(LAWS),
        is_draining=draw(RARELY),
        is_drained=draw(RARELY),
        kv_endpoints={
            name: create_endpoint(node_id, layout=draw(st.sampled_from(["l1", "l2"])), model=name)
            for name in models
            if draw(st.booleans())
        },
        reported_s=draw(REPORTS),
        cards={
            name: msgspec.structs.replace(
                create_card(name),
                revision=draw(st.sampled_from(["r1", "r1", "r2"])),
                may_keep=draw(RARELY),
                max_adapter_rank=draw(st.sampled_from([0, 16])),
                max_prompts=draw(st.sampled_from([1, 128])),
                takes_bad_words=draw(MOSTLY),
                context_window=draw(st.sampled_from([4096, 8192])),
            )
            for name in models
        },
        loads={
            name: create_load(
                name,
                running=draw(st.integers(0, 3)),
                waiting=draw(st.sampled_from([0, 0, 0, 1, 4, 12])),
                is_ready=draw(MOSTLY),
                num_free_blocks=draw(st.sampled_from([0, 50, 100])),
                num_queued_tokens=draw(st.sampled_from([0, 10, 100_000])),
            )
            for name in models
        },
        placements={
            name: ModelPlacement(
                name=name,
                tier=draw(st.sampled_from(Tier)),
                weights_bytes=1,
                kv_bytes=1,
                wake_s=draw(st.floats(0, 1e9)),
            )
            for name in models
            if draw(st.booleans())
        },
    )


@st.composite
def draw_fleet(draw: st.DrawFn) -> tuple[NodeSnapshot, ...]:
    """A handful of nodes, or more than are all looked at."""
    count = draw(st.sampled_from([10, 10, 4, 1]))
    return tuple(draw(draw_node(f"node-{index}")) for index in range(count))


NODE_IDS = st.sampled_from([NodeId(f"node-{index}") for index in range(21)])
NEEDS = st.builds(
    RouteNeed,
    model=st.sampled_from([MODEL, MODEL, MODEL, OTHER_MODEL]),
    allowed_regions=st.one_of(
        ALLOWED.map(lambda names: tuple(map(RegionId, names.split(",")))), st.none(), st.just(())
    ),
    jurisdictions=st.sampled_from([None, None, frozenset({"eu"}), frozenset({"us", "uk"})]),
    preferred=st.lists(st.frozensets(REGIONS, max_size=2), max_size=2).map(tuple),
    tried=st.frozensets(NODE_IDS, max_size=2),
    revision=st.sampled_from([None, None, "r1"]),
    rejects_busy=RARELY,
    leaves_nothing=RARELY,
    adapter=st.sampled_from([None, None, None, ADAPTER]),
    num_prompts=st.sampled_from([1, 1, 1, 2]),
    has_bad_words=RARELY,
    min_context=st.sampled_from([0, 0, 0, 8192]),
    num_prompt_bytes=st.just(4000),
    num_prompt_tokens=st.integers(0, 5000),
    num_output_tokens=st.integers(0, 5000),
    may_move=st.booleans(),
)
SENT = st.dictionaries(NODE_IDS, st.integers(0, 12), max_size=4)
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
        assert isinstance(error, ResidencyViolation) is is_empty


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    nodes=draw_fleet(),
    need=NEEDS,
    sent=SENT,
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
def test_no_plan_ever_leaves_the_law_and_the_chosen_nodes_pass_every_filter(
    nodes: tuple[NodeSnapshot, ...],
    need: RouteNeed,
    sent: dict[str, int],
    troubled: dict[str, Rejection],
    latencies_s: dict[str, float],
    hints: Hints,
    seed: int,
) -> None:
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
    facts: dict[str, Any] = {"sent": sent, "troubled": troubled, "latencies_s": latencies_s}
    try:
        state = create_state(nodes, model=need.model, **facts)
        plan = choose_node(state, need, BOUNDS, NOW_S, rng.randrange, hints)
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
    prefill = choose_prefill(state, need, plan, BOUNDS, NOW_S, QUICK, rng.randrange, hints)
    if prefill is not None:
        node = state.nodes[prefill.node_id]
        assert need.may_move
        assert node.node_id in good - {plan.node_id}
        assert (node.role, node.region) == (NodeRole.PREFILL, prefill.region)
        assert node.loads[need.model].is_ready
        assert node.node_id not in troubled
        assert prefill.card.revision == plan.card.revision
        assert prefill.endpoint == node.kv_endpoints[need.model]
        assert prefill.endpoint.layout == prefill.target.layout
        assert not wanted or prefill.region in wanted


def test_the_fleets_that_are_drawn_try_the_router() -> None:
    """The control: many can serve, and many of those have a node that only the law keeps away."""
    seen = Counter[str]()

    @settings(max_examples=600, derandomize=True, database=None, deadline=None)
    @given(nodes=draw_fleet(), need=NEEDS, sent=SENT)
    def look_at(nodes: tuple[NodeSnapshot, ...], need: RouteNeed, sent: dict[str, int]) -> None:
        able = [node for node in nodes if is_able(node, need, sent)]
        num_lawful = sum(is_lawful(node, need) for node in able)
        seen["all"] += 1
        seen["served"] += num_lawful > 0
        seen["tempted"] += 0 < num_lawful < len(able)
        seen["kept away"] += num_lawful == 0 and len(able) > 0

    look_at()
    assert seen["served"] > seen["all"] / 8
    assert min(seen["tempted"], seen["kept away"]) > seen["all"] / 40
