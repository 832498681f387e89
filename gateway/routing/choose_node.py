"""Which node serves a request: hard filters in a fixed order, then the least loaded.

Pure: no clock, no I/O, no state. Owns the order of the filters and the reasons it gives.
Read next: `gateway.routing.fleet`, which keeps the snapshots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from contracts.errors import (
    ModelFailed,
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
)
from contracts.fleet import ModelCard, ModelLoad
from contracts.ids import BootId, ModelName, NodeId, RegionId


class Rejection(StrEnum):
    """Why a node was passed over, in the order of the filters."""

    UNKNOWN = "unknown"
    """It has never reported, so that its region is not known either."""
    RESIDENCY = "residency"
    MODEL_ABSENT = "model_absent"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    REPORT_STALE = "report_stale"
    SATURATED = "saturated"
    TRIED = "tried"
    MODEL_NOT_READY = "model_not_ready"
    """Taken all the same when nobody else is left: the node lets requests wait for a while."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node as last heard of; replaced as a whole by each report."""

    node_id: NodeId
    is_connected: bool
    boot_id: BootId | None
    region: RegionId | None
    """None until the node has reported: then it is in no region that anyone may rely on."""
    jurisdiction: str
    is_draining: bool
    reported_s: float
    """Monotonic time of the last report."""
    num_reports: int
    """Reports so far, which names the last one."""
    cards: Mapping[ModelName, ModelCard]
    loads: Mapping[ModelName, ModelLoad]
    failed: Mapping[ModelName, str]
    """Models that it should serve and cannot, with the reason, which is for operators only."""


class RouteNeed(msgspec.Struct, frozen=True):
    """What a request asks of a node."""

    model: ModelName
    allowed_regions: tuple[RegionId, ...] | None
    """None means any, an empty tuple none at all."""
    tried: frozenset[NodeId] = frozenset()
    """Nodes that refused this request already."""


@dataclass(frozen=True, slots=True)
class RouteBounds:
    """When a node counts as full. Units: seconds, requests."""

    report_ttl_s: float
    max_waiting_per_model: int


class RoutePlan(msgspec.Struct, frozen=True):
    """The decision and how it came about."""

    node_id: NodeId
    region: RegionId
    card: ModelCard
    num_reports: int
    """Reports of the node that the choice rests on."""
    load: int
    """Requests queued, running or on their way, that the node was chosen for having least of."""
    rejected: tuple[tuple[NodeId, Rejection], ...]


def choose_node(
    nodes: Sequence[NodeSnapshot],
    dispatched: Mapping[tuple[NodeId, ModelName], int],
    need: RouteNeed,
    bounds: RouteBounds,
    now_s: float,
) -> RoutePlan:
    """The least loaded of the nodes that pass every filter, ready ones first; the first of equals.

    `dispatched` counts requests sent since each node's last report and not over yet.
    Raises: `ResidencyViolation`, `UnknownModel`, `PoolSaturated`, `NoEndpoint`.
    """
    best: NodeSnapshot | None = None
    best_cost = (False, 0)
    rejected: list[tuple[NodeId, Rejection]] = []
    for node in nodes:
        num_dispatched = dispatched.get((node.node_id, need.model), 0)
        reason = _find_rejection(node, num_dispatched, need, bounds, now_s)
        if reason is not None:
            rejected.append((node.node_id, reason))
            if reason is not Rejection.MODEL_NOT_READY:
                continue
        load = node.loads[need.model]
        cost = (not load.is_ready, load.num_waiting + load.num_running + num_dispatched)
        if best is None or cost < best_cost:
            best, best_cost = node, cost
    if best is None or best.region is None:
        raise _explain(nodes, need, {reason for _, reason in rejected})
    return RoutePlan(
        best.node_id,
        best.region,
        best.cards[need.model],
        best.num_reports,
        best_cost[1],
        tuple(rejected),
    )


def _find_rejection(
    node: NodeSnapshot, num_dispatched: int, need: RouteNeed, bounds: RouteBounds, now_s: float
) -> Rejection | None:
    """The first filter that `node` fails, None when it passes all."""
    if node.region is None:
        return Rejection.UNKNOWN
    if not _is_lawful(node, need):
        return Rejection.RESIDENCY
    load = node.loads.get(need.model)
    if load is None or need.model not in node.cards:
        return Rejection.MODEL_ABSENT
    if not node.is_connected:
        return Rejection.UNREACHABLE
    if node.is_draining:
        return Rejection.DRAINING
    if now_s - node.reported_s > bounds.report_ttl_s:
        return Rejection.REPORT_STALE
    if load.num_waiting + num_dispatched >= bounds.max_waiting_per_model:
        return Rejection.SATURATED
    if node.node_id in need.tried:
        return Rejection.TRIED
    return None if load.is_ready else Rejection.MODEL_NOT_READY


def _explain(
    nodes: Sequence[NodeSnapshot], need: RouteNeed, reasons: set[Rejection]
) -> ServiceError:
    """The error that tells the client most about an empty choice."""
    model = need.model
    holders = [node for node in nodes if model in node.cards]
    if not any(_is_lawful(node, need) for node in holders):
        if need.allowed_regions != () and Rejection.UNKNOWN in reasons:
            return NoEndpoint("Not every node has been reached yet, please try again.")
        is_lawful_somewhere = any(_is_lawful(node, need) for node in nodes)
        if need.allowed_regions is not None and (holders or not is_lawful_somewhere):
            return ResidencyViolation(
                "The account's data-residency rules allow no region that serves this model."
            )
    if not holders and any(model in node.failed and _is_lawful(node, need) for node in nodes):
        return ModelFailed(f"The model {model} failed to load.", param="model")
    if not holders:
        return UnknownModel(f"There is no model named {model}.", param="model")
    if Rejection.SATURATED in reasons or Rejection.REPORT_STALE in reasons:
        return PoolSaturated("Capacity temporarily exceeded, please try again.")
    return NoEndpoint("No node can serve this model right now, please try again.")


def _is_lawful(node: NodeSnapshot, need: RouteNeed) -> bool:
    """True when the account's data may go to `node`."""
    return node.region is not None and (
        need.allowed_regions is None or node.region in need.allowed_regions
    )
