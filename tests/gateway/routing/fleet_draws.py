"""Fleets and needs that are drawn: nodes in any state, crowds of them, and nodes for prompts.

Read next: `tests.gateway.routing.test_any_fleet`.
"""

import math
from typing import Any

import msgspec
from hypothesis import strategies as st

from contracts.adapters import AdapterRef
from contracts.ids import ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole
from contracts.placement import ModelPlacement, Tier
from gateway.routing.route_plan import NodeSnapshot, RouteNeed
from tests.gateway.routing.fleet_words import (
    FULL,
    MODEL,
    NOW_S,
    OTHER_MODEL,
    STALE_S,
    create_card,
    create_endpoint,
    create_load,
    create_node,
)

ADAPTER = AdapterRef(weights_sha256=b"1" * 32, num_bytes=100, scale=2.0, rank=8)
NAMES = ("weur", "enam", "apac", "weur-1", "")
REGIONS = st.sampled_from([RegionId(name) for name in ("weur", "enam", "weur", "enam", *NAMES)])
FEW = st.sampled_from([RegionId(name) for name in ("weur", "enam", "apac")])
FAR_S = {f"far-{number}": number / 8 for number in range(8)}
"""Regions of crowds, and the way there."""
WIDE = st.sampled_from([RegionId(name) for name in ("weur",) * 8 + NAMES + tuple(FAR_S)])
EVERYWHERE = sorted({*NAMES, *FAR_S} - {"apac"})
ALLOWED = st.sampled_from(["weur", "enam", "weur,apac", "apac", "weur-1", "enam,,weur-1"]).map(
    lambda names: tuple(map(RegionId, names.split(",")))
)
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


DEFECTS: tuple[dict[str, Any], ...] = (
    {"is_connected": False},
    {"is_drained": True},
    {"reported_s": STALE_S},
    {"cards": {MODEL: msgspec.structs.replace(create_card(), revision="r2")}},
    {"cards": {MODEL: msgspec.structs.replace(create_card(), may_keep=True)}},
    {"loads": {MODEL: create_load(is_ready=False)}},
    {"loads": {MODEL: FULL}},
)
IN_ORDER: dict[str, Any] = {}
IDLE = st.sampled_from([create_load(num_queued_tokens=count) for count in (0, 0, 0, 2000, 90_000)])
BUSY = st.sampled_from([create_load(running=count) for count in (40, 10, 40, 40, 40, 0)])


@st.composite
def draw_part(draw: st.DrawFn, node_id: str) -> NodeSnapshot:
    """A node for prompts, or for answers, which is busy with some; mostly in order."""
    layout = draw(st.sampled_from(["l1"] * 9 + ["l2"]))
    role = draw(st.sampled_from([NodeRole.PREFILL, NodeRole.PREFILL, *NodeRole]))
    is_for_prompts = role is NodeRole.PREFILL
    load = draw(IDLE if is_for_prompts else BUSY)
    fields = {
        "role": role,
        "jurisdiction": draw(st.sampled_from(["eu", "us"]) if is_for_prompts else LAWS),
        "loads": {MODEL: load},
        "kv_endpoints": {MODEL: create_endpoint(node_id, layout=layout)},
    }
    defect = draw(st.sampled_from([IN_ORDER] * 28 + list(DEFECTS)))
    return create_node(node_id, draw(FEW), **(fields | defect))


@st.composite
def draw_parted_fleet(draw: st.DrawFn) -> tuple[NodeSnapshot, ...]:
    """Nodes that compute prompts for others, and those others."""
    count = draw(st.sampled_from([9, 6]))
    return tuple(draw(draw_part(f"node-{index}")) for index in range(count))


@st.composite
def draw_crowd(draw: st.DrawFn) -> tuple[NodeSnapshot, ...]:
    """Many nodes of a few kinds in many regions: more than are visited, and more in one of them
    than are looked at there. Often those nearby have much to do.
    """
    kinds = draw(st.tuples(draw_node("kind-0"), draw_part("kind-1"), draw_part("kind-2")))
    places = draw(st.lists(st.tuples(st.sampled_from(kinds), WIDE), min_size=16, max_size=30))
    busy = draw(st.sampled_from([(), NAMES, (*NAMES, *FAR_S)[:-2]]))
    return tuple(
        _place(kind, region, NodeId(f"node-{index}"), is_busy=region in busy)
        for index, (kind, region) in enumerate(places)
    )


def _place(kind: NodeSnapshot, region: RegionId, node_id: NodeId, *, is_busy: bool) -> NodeSnapshot:
    """Another node like that one."""
    replace = msgspec.structs.replace
    ends = {
        name: create_endpoint(node_id, layout=end.layout, model=name)
        for name, end in kind.kv_endpoints.items()
    }
    loads = {
        name: replace(load, num_queued_tokens=1_000_000) if is_busy else load
        for name, load in kind.loads.items()
    }
    known = None if kind.region is None else region
    return replace(kind, node_id=node_id, region=known, kv_endpoints=ends, loads=loads)


NODE_IDS = st.sampled_from([NodeId(f"node-{index}") for index in range(30)])
DISPUTED = st.one_of(st.just(frozenset[RegionId]()), st.frozensets(REGIONS, min_size=1, max_size=3))
NEEDS = st.builds(
    RouteNeed,
    model=st.sampled_from([MODEL, MODEL, MODEL, OTHER_MODEL]),
    allowed_regions=st.one_of(ALLOWED, st.none(), st.just(())),
    jurisdictions=st.sampled_from([None, None, frozenset({"eu"}), frozenset({"us", "uk"})]),
    disputed=DISPUTED,
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
WIDE_NEEDS = st.builds(
    RouteNeed,
    model=st.just(MODEL),
    allowed_regions=st.sampled_from([None, tuple(map(RegionId, EVERYWHERE))]),
    jurisdictions=st.sampled_from([None, frozenset({"eu"})]),
    disputed=DISPUTED,
    num_prompt_bytes=st.just(4000),
    num_prompt_tokens=st.integers(0, 20_000),
    may_move=st.booleans(),
)
"""That may go nearly everywhere."""
GROUPS = st.lists(FEW.map(lambda name: frozenset({name})), min_size=1, max_size=2).map(tuple)
LONG_NEEDS = st.builds(
    RouteNeed,
    model=st.just(MODEL),
    allowed_regions=st.one_of(
        st.none(), st.none(), st.lists(FEW, min_size=1, max_size=3).map(tuple)
    ),
    jurisdictions=st.sampled_from([None, frozenset({"eu"})]),
    disputed=DISPUTED,
    preferred=st.one_of(st.just(()), GROUPS, GROUPS),
    tried=st.frozensets(NODE_IDS, max_size=1),
    leaves_nothing=RARELY,
    num_prompt_bytes=st.just(4000),
    num_prompt_tokens=st.integers(3000, 20_000),
    num_output_tokens=st.integers(0, 500),
    may_move=MOSTLY,
)
"""Of prompts that are worth the way."""
Scene = tuple[tuple[NodeSnapshot, ...], RouteNeed]
"""A fleet, and what is needed of it."""
SCENES = st.one_of(
    st.tuples(draw_fleet(), NEEDS), st.tuples(draw_crowd(), st.one_of(NEEDS, WIDE_NEEDS))
)
PARTED_SCENES = st.tuples(draw_parted_fleet(), LONG_NEEDS)
SENT = st.dictionaries(NODE_IDS, st.integers(0, 12), max_size=4)
