"""Short words for nodes, loads and needs, so that routing tests read as sentences."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from contracts.fleet import ModelCard, ModelLoad, NodeReport
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.kv_transfer import KvEndpoint
from contracts.placement import MemoryUse
from gateway.routing.choose_node import choose_node
from gateway.routing.fleet import Fleet
from gateway.routing.law_table import LawTable
from gateway.routing.locality import Locality
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.rings import list_rings
from gateway.routing.roster import Roster
from gateway.routing.route_plan import (
    NO_HINTS,
    FleetState,
    Hints,
    NodeSnapshot,
    Rejection,
    RouteBounds,
    RouteNeed,
    RoutePlan,
    Sent,
)
from gateway.routing.sessions import SessionMap
from gateway.sources import Sources

MODEL = ModelName("@hearth/tests/small")
OTHER_MODEL = ModelName("@hearth/tests/other")
NOW_S = 1000.0
BOUNDS = RouteBounds(report_ttl_s=5.0, max_waiting_per_model=10)
NEED = RouteNeed(MODEL, None)


def create_card(name: ModelName = MODEL) -> ModelCard:
    """A model's card."""
    return ModelCard(
        name=name, revision="r1", task="Text Generation", description="", context_window=4096
    )


def create_load(
    name: ModelName = MODEL,
    *,
    running: int = 0,
    waiting: int = 0,
    is_ready: bool = True,
    **figures: Any,
) -> ModelLoad:
    """How busy a model is."""
    blocks = {"num_blocks": 100, "num_free_blocks": 100}
    return ModelLoad(
        name=name,
        is_ready=is_ready,
        num_running=running,
        num_waiting=waiting,
        **(blocks | figures),
    )


def create_endpoint(
    node_id: str, engine: str = "nixl", layout: str = "l1", model: ModelName = MODEL
) -> KvEndpoint:
    """Where a node's KV blocks come and go."""
    return KvEndpoint(
        model=model,
        engine=engine,
        incarnation=f"life of {node_id}",
        layout=layout,
        block_size=16,
        bytes_per_token=1024,
    )


def create_report(node_id: str, region: str = "weur", *, running: int = 0) -> NodeReport:
    """What a healthy node says of itself."""
    return NodeReport(
        node_id=NodeId(node_id),
        boot_id=BootId("boot"),
        region=RegionId(region),
        jurisdiction="eu",
        is_draining=False,
        models=(create_card(),),
        loads=(create_load(running=running),),
    )


def create_node(node_id: str, region: str | None = "weur", **changes: Any) -> NodeSnapshot:
    """A healthy node with `MODEL` that has just reported."""
    node = NodeSnapshot(
        node_id=NodeId(node_id),
        is_connected=True,
        boot_id=BootId("boot"),
        region=None if region is None else RegionId(region),
        jurisdiction="eu",
        is_draining=False,
        reported_s=NOW_S,
        num_reports=1,
        cards={MODEL: create_card()},
        loads={MODEL: create_load()},
        failed={},
        placements={},
        memory=MemoryUse(),
        kv_endpoints={MODEL: create_endpoint(node_id)},
    )
    return replace(node, **changes)


def create_silent_node(node_id: str) -> NodeSnapshot:
    """A node that has never reported."""
    return create_node(node_id, None, is_connected=False, num_reports=0, cards={}, loads={})


def create_fleet(
    *node_ids: str,
    sources: Sources,
    regions: Mapping[str, Region] | None = None,
    vouched: Mapping[str, str] | None = None,
) -> Fleet:
    """A fleet of these nodes, none of which has spoken yet, as a gateway in `weur` sees it.

    `vouched`: the regions that the configuration gives to nodes.
    """
    catalogue = RegionCatalogue(
        RegionId("weur"), {RegionId(name): region for name, region in (regions or {}).items()}
    )
    locality = Locality(SessionMap(max_sessions=1000, idle_s=600.0))
    said = {node_id: RegionId(region) for node_id, region in (vouched or {}).items()}
    nodes = {NodeId(node_id): said.get(node_id) for node_id in node_ids}
    return Fleet(Roster(nodes, LawTable(catalogue)), BOUNDS, locality, sources)


def create_state(
    nodes: Iterable[NodeSnapshot],
    *,
    sent: Mapping[str, int] | None = None,
    troubled: Mapping[str, Rejection] | None = None,
    latencies_s: Mapping[str, float] | None = None,
    model: ModelName = MODEL,
    usual_new_tokens: float = 0.0,
) -> FleetState:
    """What a gateway knows. `sent` counts requests for `MODEL` by node."""
    nodes = list(nodes)
    rings = list_rings(model, nodes, lambda region: (latencies_s or {}).get(region, 0.0))
    return FleetState(
        NOW_S,
        BOUNDS,
        {node.node_id: node for node in nodes},
        rings.answering,
        {(NodeId(name), MODEL): Sent(count) for name, count in (sent or {}).items()},
        {NodeId(name): reason for name, reason in (troubled or {}).items()},
        rings.prefilling,
        rings.latencies_s,
        usual_new_tokens=usual_new_tokens,
    )


def choose(
    *nodes: NodeSnapshot,
    need: RouteNeed = NEED,
    hints: Hints = NO_HINTS,
    draw: Callable[[int], int] = lambda count: count - 1,
    **facts: Any,
) -> RoutePlan:
    """The choice among `nodes` at `NOW_S`; `facts` are those of `create_state`."""
    state = create_state(nodes, model=need.model, **facts)
    return choose_node(state, need, draw, hints)


def allow(*regions: str) -> RouteNeed:
    """A need of an account that is bound to `regions`."""
    return RouteNeed(MODEL, tuple(RegionId(region) for region in regions))


STALE_S = NOW_S - BOUNDS.report_ttl_s - 0.001
FULL = create_load(waiting=BOUNDS.max_waiting_per_model)
BOUND = allow("weur")
