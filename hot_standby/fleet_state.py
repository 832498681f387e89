"""The fleet as one picture, put together from what every gateway tells of it.

Pure. Where gateways differ, the one that heard of a node last is right. Must not know demand.
Read next: `hot_standby.placement_planner`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from contracts.fleet_view import FleetView, NodeView, PlacementRule
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.placement import MemoryUse, ServiceClass, Tier
from hot_standby.tiers import MoveSpeeds, learn_speeds


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model on one node."""

    tier: Tier
    weights_bytes: int
    kv_bytes: int
    num_in_flight: int = 0
    """Requests that run, queue or wait for the model to wake."""
    is_moving: bool = False
    service_class: ServiceClass = ServiceClass.BEST_EFFORT

    @property
    def device_bytes(self) -> int:
        """What it takes on the device."""
        return self.weights_bytes + self.kv_bytes


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node that can be planned for."""

    node_id: NodeId
    boot_id: BootId
    region: RegionId
    memory: MemoryUse
    models: Mapping[ModelName, ModelState]
    speeds: MoveSpeeds = field(default_factory=MoveSpeeds)


@dataclass(frozen=True, slots=True)
class FleetState:
    """All nodes that can be planned for, in order of their ids."""

    nodes: tuple[NodeState, ...]
    latencies_s: Mapping[tuple[RegionId, RegionId], float]
    """From where a request enters to where a node is, and back."""
    rules: Mapping[ModelName, PlacementRule] = field(default_factory=lambda: MappingProxyType({}))

    def measure_latency_s(self, entry: RegionId, region: RegionId) -> float:
        """There and back; far, where nobody has said."""
        return 0.0 if entry == region else self.latencies_s.get((entry, region), 0.1)


def merge_views(
    views: Iterable[FleetView],
    max_age_s: float,
    speeds: MoveSpeeds,
    classes: Mapping[ModelName, ServiceClass],
) -> FleetState:
    """The nodes that somebody has heard of within `max_age_s` and that serve.

    `classes` are those of the planner's own settings; an operator's rule and a node's own class
    come before them.
    """
    views = tuple(views)
    latencies: dict[tuple[RegionId, RegionId], float] = {}
    rules: dict[ModelName, PlacementRule] = {}
    for view in sorted(views, key=lambda view: (view.unix_ms, view.gateway_id)):
        rules = {rule.model: rule for rule in view.rules}  # one table for all: the newest read
        for node in view.nodes:
            if node.region is not None:
                latencies[view.region, node.region] = node.latency_s
    nodes = [
        _to_state(node, node.boot_id, node.region, speeds, rules, classes)
        for node in list_newest(views, max_age_s)
        if node.boot_id is not None and node.region is not None and node.placements
    ]
    return FleetState(tuple(nodes), latencies, rules)


def list_newest(views: Iterable[FleetView], max_age_s: float) -> list[NodeView]:
    """Every node that takes requests, as whoever heard of it last tells, in order of their ids."""
    newest: dict[NodeId, NodeView] = {}
    for view in sorted(views, key=lambda view: (view.unix_ms, view.gateway_id)):
        for node in view.nodes:
            known = newest.get(node.node_id)
            if known is None or _measure_age_s(node) < _measure_age_s(known):
                newest[node.node_id] = node
    return [
        node
        for _, node in sorted(newest.items())
        if not node.is_draining and _measure_age_s(node) <= max_age_s
    ]


def _measure_age_s(node: NodeView) -> float:
    """How old the gateway's knowledge of the node is."""
    if not node.is_connected or node.report_age_s is None:
        return float("inf")
    return node.report_age_s


def _to_state(
    node: NodeView,
    boot_id: BootId,
    region: RegionId,
    speeds: MoveSpeeds,
    rules: Mapping[ModelName, PlacementRule],
    classes: Mapping[ModelName, ServiceClass],
) -> NodeState:
    """The node as the planner sees it."""
    busy = {load.name: load.num_running + load.num_waiting + load.num_coming for load in node.loads}
    models = {
        model.name: ModelState(
            model.tier,
            model.weights_bytes,
            model.kv_bytes,
            busy.get(model.name, 0) + model.num_waiting,
            model.is_moving,
            _choose_class(
                rules[model.name].service_class if model.name in rules else None,
                model.service_class,
                classes.get(model.name),
            ),
        )
        for model in sorted(node.placements, key=lambda model: model.name)
    }
    known = learn_speeds(speeds, node.placements)
    return NodeState(node.node_id, boot_id, region, node.memory, models, known)


def _choose_class(*said: ServiceClass | None) -> ServiceClass:
    """The first class that says more than nothing."""
    wanted = (each for each in said if each not in (None, ServiceClass.BEST_EFFORT))
    return next(wanted, None) or ServiceClass.BEST_EFFORT
