"""What a gateway's operator port tells of the fleet: nodes, demand and what operators want.

Hot standby plans from it and `hearth models status` shows it. Must not know HTTP.
Read next: `contracts.placement`, `contracts.demand`.
"""

from typing import Annotated, Final

import msgspec

from contracts.demand import DemandSample
from contracts.fleet import FailedModel, ModelCard, ModelLoad
from contracts.ids import BootId, GatewayId, ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole
from contracts.placement import MemoryUse, ModelPlacement, PlacementPlan, ServiceClass, Tier

PLACEMENT_PATH: Final = "/operator/v1/placement"
PLANS_PATH: Final = PLACEMENT_PATH + "/plans"
RULES_PATH: Final = PLACEMENT_PATH + "/rules"
NODES_PATH: Final = "/operator/v1/nodes"
DRAINS_PATH: Final = NODES_PATH + "/drains"
KEYS_PATH: Final = NODES_PATH + "/keys"
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]


class PlacementRule(msgspec.Struct, frozen=True, kw_only=True):
    """What operators want of one model, whatever its demand."""

    model: ModelName
    service_class: ServiceClass = ServiceClass.BEST_EFFORT
    tier: Tier | None = None
    """Where it is to be: `gpu` and `host` bring it no less near, `disk` no nearer unless a request
    comes. None leaves it to demand."""
    until_unix_s: _Count | None = None
    """When `tier` ends to hold; None: never, which is a pin."""

    def find_tier(self, unix_s: float) -> Tier | None:
        """The tier that is wanted at a moment."""
        is_over = self.until_unix_s is not None and unix_s >= self.until_unix_s
        return None if is_over else self.tier

    def is_pinned(self, unix_s: float) -> bool:
        """True while the model is to stay on the device."""
        return self.find_tier(unix_s) is Tier.GPU and self.until_unix_s is None


class NodeDrain(msgspec.Struct, frozen=True, kw_only=True):
    """A node that operators want to get nothing new, until they say otherwise."""

    node_id: NodeId
    begun_unix_s: _Count
    move_after_s: _Count | None = None
    """How long streams may go on there, from `begun_unix_s`, before they are continued at other
    nodes; None: to their end."""

    def is_over(self, unix_s: float) -> bool:
        """True once streams are to go on elsewhere."""
        return self.move_after_s is not None and unix_s >= self.begun_unix_s + self.move_after_s


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node as a gateway last heard of it."""

    node_id: NodeId
    boot_id: BootId | None
    """None until it has reported."""
    region: RegionId | None
    jurisdiction: str
    latency_s: float
    """From the gateway to the node's region and back."""
    is_connected: bool
    is_draining: bool
    """It takes nothing new, by its own word or by the operators'."""
    report_age_s: float | None
    placements: tuple[ModelPlacement, ...] = ()
    loads: tuple[ModelLoad, ...] = ()
    memory: MemoryUse = MemoryUse()
    plan: PlacementPlan | None = None
    """The last that this gateway has sent there."""
    role: NodeRole = NodeRole.MIXED
    roles: tuple[NodeRole, ...] = ()
    """Those that a plan may give it."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node as operators see it through a gateway. Units: `report_age_s` in seconds."""

    node_id: NodeId
    boot_id: BootId | None
    is_connected: bool
    is_draining: bool
    """By its own word: its process has been told to stop."""
    drain: NodeDrain | None
    """By the operators': it gets nothing new."""
    region: RegionId | None
    jurisdiction: str
    report_age_s: float | None
    """None until the first report."""
    models: tuple[ModelCard, ...]
    loads: tuple[ModelLoad, ...]
    failed: tuple[FailedModel, ...]
    """Models that it should serve and cannot, with the reason."""
    role: NodeRole = NodeRole.MIXED
    suggested_role: NodeRole | None = None
    """Another one that hot standby thinks better; None: it does not."""
    heartbeat_age_s: float | None = None
    """Since it last wrote into the store of members; None for a node of the settings."""
    refusal: str | None = None
    """Why what it says of itself now, here or in that store, is not believed; None: it is."""

    @property
    def num_requests(self) -> int:
        """Requests there, of every gateway, when it reported last."""
        return sum(load.num_running + load.num_waiting + load.num_coming for load in self.loads)


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """All that one gateway knows of where weights are and should be."""

    gateway_id: GatewayId
    boot_id: BootId
    """One life of the gateway's process: its demand counts from zero again after it."""
    region: RegionId
    unix_ms: _Count
    nodes: tuple[NodeView, ...]
    demand: tuple[DemandSample, ...]
    rules: tuple[PlacementRule, ...]
