"""What operators see: metrics and the state of the nodes.

Must not know tenants: nothing here names one. Read next: `gateway.telemetry`,
`gateway.routing.fleet`.
"""

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from contracts.fleet import FailedModel, ModelCard, ModelLoad
from gateway.auth.caller import Caller
from gateway.dialects.replies import SuccessEnvelope, encoder
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import NodeSnapshot
from gateway.sources import Sources
from gateway.telemetry import Telemetry


class NodeFields(msgspec.Struct, frozen=True, kw_only=True):
    """One node. Units: `report_age_s` in seconds; None until the first report."""

    node_id: str
    boot_id: str | None
    is_connected: bool
    is_draining: bool
    region: str | None
    jurisdiction: str
    report_age_s: float | None
    models: tuple[ModelCard, ...]
    loads: tuple[ModelLoad, ...]
    failed: tuple[FailedModel, ...]
    """Models that it should serve and cannot, with the reason."""


class OperatorPages:
    """Reads the gateway's own state."""

    def __init__(self, fleet: Fleet, telemetry: Telemetry, sources: Sources) -> None:
        """The registry belongs to this object, so that two gateways in a process stay apart."""
        self._fleet = fleet
        self._sources = sources
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(telemetry)

    async def metrics(self, request: Request, caller: Caller) -> Response:
        """Every metric in Prometheus' text form."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def nodes(self, request: Request, caller: Caller) -> Response:
        """Every configured node with its last report."""
        fields = [self._to_fields(node) for node in self._fleet.snapshots]
        return Response(encoder.encode(SuccessEnvelope(fields)), media_type="application/json")

    def _to_fields(self, node: NodeSnapshot) -> NodeFields:
        age_s = self._sources.monotonic_s() - node.reported_s
        return NodeFields(
            node_id=node.node_id,
            boot_id=node.boot_id,
            is_connected=node.is_connected,
            is_draining=node.is_draining,
            region=node.region,
            jurisdiction=node.jurisdiction,
            report_age_s=None if node.region is None else round(age_s, 3),
            models=tuple(node.cards.values()),
            loads=tuple(node.loads.values()),
            failed=tuple(
                FailedModel(name=name, reason=reason) for name, reason in node.failed.items()
            ),
        )
