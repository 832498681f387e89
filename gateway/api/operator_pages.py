"""What operators see of this process: its metrics.

Must not know tenants: nothing here names one. Read next: `gateway.telemetry`.
"""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth.caller import Caller
from gateway.telemetry import Telemetry


class OperatorPages:
    """Reads the gateway's own state."""

    def __init__(self, telemetry: Telemetry) -> None:
        """The registry belongs to this object, so that two gateways in a process stay apart."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(telemetry)

    async def metrics(self, request: Request, caller: Caller) -> Response:
        """Every metric in Prometheus' text form."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
