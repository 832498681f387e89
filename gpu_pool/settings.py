"""The settings of a node.

Owns what holds between its sections, which are declared by what they configure; must not know files
or the environment, which `node` reads. Overrides start with `HEARTH_POOL__`.
Read next: `model_settings`, `connection_settings`, `room_settings`, `transfer_settings`, `node`.
"""

from typing import Annotated, Final

import msgspec

from contracts.ids import (
    NodeId,
    RegionId,
    find_jurisdiction_fault,
    find_region_fault,
    is_node_id,
)
from contracts.node_roles import NodeRole
from contracts.sections import LogSettings, MetricsSettings, TracingSettings
from contracts.settings import Secret, require_distinct
from gpu_pool.connection_settings import GatewaySettings, ListenSettings, MembershipSettings
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.room_settings import AdapterSettings, PlacementSettings
from gpu_pool.transfer_settings import TransferSettings
from gpu_pool.upstream_settings import UpstreamSettings

PREFIX: Final = "HEARTH_POOL"
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_NotNegative = Annotated[int, msgspec.Meta(ge=0)]
_Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class RunningCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node costs its operator, in any one currency; for metrics alone, nobody is charged."""

    per_hour: _Price = 0.0
    """The machine, in use or not: rent, or purchase over its life."""
    per_kilowatt_hour: _Price = 0.0
    """The energy of its GPUs, where `per_hour` does not contain it."""


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node_id: NodeId = NodeId("node-1")
    region: RegionId = RegionId("local")
    jurisdiction: str = ""
    """Whose law holds there, such as `eu`; empty: this node does not say."""
    listen: ListenSettings = ListenSettings()
    gateways: tuple[GatewaySettings, ...] = ()
    models: tuple[ServedModelSettings, ...] = ()
    upstreams: tuple[UpstreamSettings, ...] = ()
    """Models that engines of others compute."""
    engine: EngineSettings = EngineSettings()
    kv_shared_bytes: _NotNegative | None = None
    """KV memory beside what is each model's own (`kv_least_bytes`), for whichever needs it. None:
    as much as the one of them can take that can take most."""
    placement: PlacementSettings | None = None
    """None: all models stay on the device."""
    adapters: AdapterSettings = AdapterSettings()
    weights_token: Secret | None = None
    """For servers that weights are fetched from; sent to those named beside a model alone."""
    role: NodeRole = NodeRole.MIXED
    """Which half of a generation this node is there for when it starts."""
    roles: tuple[NodeRole, ...] = ()
    """`prefill` and `decode`, `role` among them: hot standby may turn this node from one to the
    other. Empty: `role` holds."""
    transfer: TransferSettings | None = None
    """None: KV blocks stay on this node."""
    hello_timeout_s: float = 2.0
    """How long a connection may take to prove itself."""
    max_cold_wait_s: float = 30.0
    """How long a request may wait for a model that is being loaded, woken or restarted."""
    max_cold_waiting: _Positive = 512
    """Requests that may wait so, of each model."""
    drain_s: float = 30.0
    """How long streams may go on after the node was told to stop."""
    membership: MembershipSettings | None = None
    """None: gateways know this node from their settings."""
    metrics: MetricsSettings | None = None
    """None: this node's metrics cannot be read."""
    running_costs: RunningCosts | None = None
    """None: metrics do not tell what tokens cost."""
    tracing: TracingSettings | None = None
    """None: this node tells nothing of requests that a gateway traces."""
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        """Checks the shape of id, region and jurisdiction, and that nothing is named twice."""
        if not is_node_id(self.node_id):
            raise ValueError("node_id has letters, digits, `-`, `_`, `.`; at most 63")
        law = self.jurisdiction
        fault = find_region_fault(self.region) or (law and find_jurisdiction_fault(law))
        if fault:
            raise ValueError(fault)
        require_distinct("The model", (model.name for model in (*self.models, *self.upstreams)))
        require_distinct("The gateway", (gateway.gateway_id for gateway in self.gateways))
        self._check_roles()
        self._check_shared_kv()
        self._check_stores()

    @property
    def shared_kv_bytes(self) -> int:
        """KV memory for whichever model needs it, beside what is each one's own."""
        if self.kv_shared_bytes is not None:
            return self.kv_shared_bytes
        engines = (model.engine or self.engine for model in self.models)
        return max((engine.most_shared_bytes for engine in engines), default=0)

    def _check_shared_kv(self) -> None:
        """Memory that is shared has somebody who takes it, in one process, and room."""
        sharing = [
            model
            for model in self.models
            if (model.engine or self.engine).kv_least_bytes is not None
        ]
        if self.kv_shared_bytes and not sharing and self.engine.kv_least_bytes is None:
            raise ValueError("kv_shared_bytes is for models whose engine has `kv_least_bytes`")
        if any(model.num_ranks > 1 for model in sharing):
            raise ValueError("kv_least_bytes: a model of several processes does not share its KV")
        if self.placement is not None and self.shared_kv_bytes >= self.placement.device_bytes:
            raise ValueError("kv_shared_bytes is a part of the placement's device_bytes")

    def _check_stores(self) -> None:
        """Who says where the nodes of a KV store stand is one of them."""
        for engine in (self.engine, *(model.engine or self.engine for model in self.models)):
            store = None if engine.tiers is None else engine.tiers.store
            if store is not None and store.regions and self.region not in store.regions:
                raise ValueError(
                    f"`regions` of a KV store are those of all its nodes, and lack {self.region}"
                )

    def _check_roles(self) -> None:
        """A node that may be turned has to be able to do its part in either role."""
        if not self.roles:
            return
        if sorted(self.roles) != [NodeRole.DECODE, NodeRole.PREFILL]:
            raise ValueError('`roles` are "prefill" and "decode", both of them, or left out')
        if self.role not in self.roles:
            raise ValueError(f'`role` is "{self.role}", which is none of `roles`')
        if self.transfer is None:
            raise ValueError("`roles` need `[transfer]`: without it no prompt leaves this node")
