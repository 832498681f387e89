"""Where a model's weights are, and where they should be.

Owns the tiers, what a node says of its models' memory and what the planner asks of it. Law ("where
data may go") is residency and not here. Read next: `contracts.fleet`, whose report carries this.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from contracts.ids import BootId, ModelName, NodeId
from contracts.node_roles import RoleWish

_Bytes = Annotated[int, msgspec.Meta(ge=0, lt=2**60)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
MAX_PLANNED_MODELS: Final = 4096


class Tier(StrEnum):
    """How near a model's weights are to the device that computes, nearest first."""

    GPU = "gpu"
    """In the memory of the device, which may be a CPU: requests start at once."""
    HOST = "host"
    """In the node's main memory, beside a sleeping engine core."""
    DISK = "disk"
    """In files on the node; no process."""
    REMOTE = "remote"
    """Elsewhere: they are to be fetched first."""


class ServiceClass(StrEnum):
    """How much a model's first token may be delayed by its weights being elsewhere."""

    ALWAYS_HOT = "always_hot"
    """Never leaves the device."""
    WARM = "warm"
    """Never further than the host's memory while that has room."""
    BEST_EFFORT = "best_effort"
    """Wherever demand puts it."""


class ModelPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Where one model of a node is at the moment, and what it takes."""

    name: ModelName
    tier: Tier
    weights_bytes: _Bytes
    kv_bytes: _Bytes
    fetched_bytes: _Bytes = 0
    """In `remote`: what of the weights is on the node's disk already."""
    loaded_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """How much of its files the engine has read that is being started; 0: none, or not told."""
    is_moving: bool = False
    """On its way to another tier."""
    is_pinned: bool = False
    """An operator wants it on the device."""
    service_class: ServiceClass = ServiceClass.BEST_EFFORT
    wake_s: _Seconds = 0.0
    """Expected until requests start; 0 where they start at once."""
    num_waiting: _Count = 0
    """Requests that wait for it to wake."""
    num_wakes: _Count = 0
    """Since the node was started."""
    last_wake_s: _Seconds = 0.0
    """What the last wake took."""
    last_used_unix_ms: _Count = 0
    """When a request last started or ended; 0: never."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's models may take together, and do. A budget of 0 bounds nothing."""

    device_budget_bytes: _Bytes = 0
    device_used_bytes: _Bytes = 0
    host_budget_bytes: _Bytes = 0
    host_used_bytes: _Bytes = 0
    disk_budget_bytes: _Bytes = 0
    disk_used_bytes: _Bytes = 0
    """Of weights that were fetched and can be fetched again."""


class PlacementTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where one model should be. A node may bring it nearer for a request, and back later."""

    name: ModelName
    tier: Tier
    is_pinned: bool = False


class PlacementPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one node should do with its models until it hears otherwise.

    Between plans the node wakes models on demand and makes room in `eviction_order`. What is left
    at its default is not written: gateways of versions without a field refuse plans that have it.
    """

    node_id: NodeId
    boot_id: BootId
    """The life of the node that the plan was made for; another one refuses it."""
    number: _Count
    """Grows with each plan of a planner; an older one than the last is refused."""
    targets: Annotated[tuple[PlacementTarget, ...], msgspec.Meta(max_length=MAX_PLANNED_MODELS)]
    eviction_order: Annotated[
        tuple[ModelName, ...], msgspec.Meta(max_length=MAX_PLANNED_MODELS)
    ] = ()
    """Who makes room first; models not named go before all others, oldest use first."""
    role: RoleWish | None = None
    """For nodes whose reports have `roles`; None: nothing is said of it, what was said holds."""
