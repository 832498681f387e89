"""Both ports with everything that is reached through them.

Owns the putting together of routes, guard and applications, and the order in which ports open and
close. Read next: `gateway.api.tenant_routes`, `gateway.api.operator_routes`, `gateway.api.ports`.
"""

from gateway.api.guard import Guard
from gateway.api.operator_routes import create_operator_routes
from gateway.api.ports import TenantPort, create_pages
from gateway.api.tenant_routes import create_tenant_routes
from gateway.auth.authenticator import Authenticators
from gateway.middleware.servers import Port
from gateway.request_context import OpenRequests
from gateway.request_path import RequestPath
from gateway.routing.fleet import Fleet
from gateway.settings import GatewaySettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry


class Listeners:
    """The tenants' and the operators' port."""

    def __init__(
        self,
        settings: GatewaySettings,
        requests: OpenRequests,
        authenticators: Authenticators,
        request_path: RequestPath,
        fleet: Fleet,
        telemetry: Telemetry,
        sources: Sources,
    ) -> None:
        """Nothing is bound yet. Raises: `InvariantBroken` for a route that demands nothing."""
        limits = settings.limits
        self._fleet = fleet
        self._is_stopping = False
        guard = Guard(requests, authenticators.api_tokens, authenticators.operators, telemetry)
        tenants = TenantPort(
            create_tenant_routes(fleet, self.is_ready), guard, request_path, limits
        )
        operators = create_pages(
            create_operator_routes(fleet, self.is_ready, telemetry, sources), guard
        )
        self.tenants = Port(tenants, settings.listen, limits)
        self.operators = Port(operators, settings.admin, limits)

    def is_ready(self) -> bool:
        """True while some node can serve some model and no stop is under way."""
        return not self._is_stopping and self._fleet.has_ready_model()

    async def start(self) -> None:
        """Opens both. Raises: `OSError` when a port is taken."""
        await self.operators.start()
        try:
            await self.tenants.start()
        except OSError:
            await self.operators.stop()
            raise

    async def stop(self) -> None:
        """Closes both; the operators' port goes last, so that a stop can be watched."""
        self._is_stopping = True
        await self.tenants.stop()
        await self.operators.stop()
