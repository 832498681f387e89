"""Short words for nodes, loads and needs, so that routing tests read as sentences."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contracts.fleet import ModelCard, ModelLoad, NodeReport
from contracts.ids import BootId, ModelName, NodeId, RegionId
from gateway.routing.choose_node import NodeSnapshot, RouteBounds, RouteNeed, RoutePlan, choose_node

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
    name: ModelName = MODEL, *, running: int = 0, waiting: int = 0, is_ready: bool = True
) -> ModelLoad:
    """How busy a model is."""
    return ModelLoad(
        name=name,
        is_ready=is_ready,
        num_running=running,
        num_waiting=waiting,
        num_blocks=100,
        num_free_blocks=100,
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
    )
    return replace(node, **changes)


def create_silent_node(node_id: str) -> NodeSnapshot:
    """A node that has never reported."""
    return create_node(node_id, None, is_connected=False, num_reports=0, cards={}, loads={})


def choose(
    *nodes: NodeSnapshot,
    need: RouteNeed = NEED,
    dispatched: Mapping[tuple[NodeId, ModelName], int] | None = None,
) -> RoutePlan:
    """The choice among `nodes` at `NOW_S`."""
    return choose_node(nodes, dispatched or {}, need, BOUNDS, NOW_S)


def allow(*regions: str) -> RouteNeed:
    """A need of an account that is bound to `regions`."""
    return RouteNeed(MODEL, tuple(RegionId(region) for region in regions))
