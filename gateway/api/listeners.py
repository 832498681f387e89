"""Both ports with everything that is reached through them.

Owns the putting together of routes, guard and applications, and the order in which ports open and
close. Read next: `gateway.api.tenant_routes`, `gateway.api.operator_routes`, `gateway.api.ports`.
"""

from collections.abc import Callable

from gateway.api.cross_origin import CrossOrigin, CrossOriginPages
from gateway.api.guard import Guard
from gateway.api.operator_routes import create_metrics_routes, create_operator_routes
from gateway.api.ports import Console, InferenceRoutes, create_pages
from gateway.api.services import PageServices
from gateway.api.tenant_routes import create_tenant_routes
from gateway.api.turns import Turns
from gateway.auth.composition import Authenticators
from gateway.middleware.servers import Port
from gateway.request_context import OpenRequests
from gateway.request_path import RequestPath
from gateway.settings import GatewaySettings


class Readiness:
    """Whether this process can serve."""

    def __init__(self, has_ready_model: Callable[[], bool]) -> None:
        """`has_ready_model` tells whether some node can serve some model."""
        self._has_ready_model = has_ready_model
        self._is_stopping = False
        self._conditions: list[Callable[[], bool]] = []

    def is_ready(self) -> bool:
        """True while some node can serve some model, nothing is amiss and no stop is under way."""
        if self._is_stopping or not self._has_ready_model():
            return False
        return all(holds() for holds in self._conditions)

    def require(self, holds: Callable[[], bool]) -> None:
        """Makes `holds` a condition of being ready."""
        self._conditions.append(holds)

    def stop(self) -> None:
        """Not ready from now on."""
        self._is_stopping = True


class Listeners:
    """The tenants' and the operators' port, and one for metrics where that is configured."""

    def __init__(
        self, tenants: Port, operators: Port, metrics: Port | None, readiness: Readiness
    ) -> None:
        """Nothing is bound yet."""
        self._inner = (operators,) if metrics is None else (operators, metrics)
        self.metrics = metrics
        self.tenants = tenants
        self.operators = operators
        self.readiness = readiness

    async def start(self) -> None:
        """Opens all. Raises: `OSError` when a port is taken."""
        open_ones: list[Port] = []
        try:
            for port in (*self._inner, self.tenants):
                await port.start()
                open_ones.append(port)
        except OSError:
            for port in open_ones:
                await port.stop()
            raise

    async def stop(self) -> None:
        """Closes all; the tenants' port goes first, so that a stop can be watched."""
        self.readiness.stop()
        await self.tenants.stop()
        for port in self._inner:
            await port.stop()


def create_listeners(
    settings: GatewaySettings,
    requests: OpenRequests,
    authenticators: Authenticators,
    request_path: RequestPath,
    services: PageServices,
    console: Console,
) -> Listeners:
    """All ports, not yet bound. Raises: `InvariantBroken` for a route that demands nothing."""
    readiness = Readiness(services.fleet.has_ready_model)
    readiness.require(lambda: not services.fleet.is_clock_doubted())
    guard = Guard(requests, authenticators, services.telemetry, Turns())
    cross_origin = CrossOrigin(settings.cross_origin)
    tenants = create_tenant_routes(services, readiness.is_ready)
    operators = create_operator_routes(services, readiness.is_ready, console.routes)
    metrics = None
    if settings.metrics is not None:
        pages = create_pages(create_metrics_routes(services), guard)
        metrics = Port(pages, settings.metrics, settings.limits, guard)
    return Listeners(
        Port(
            CrossOriginPages(create_pages(tenants, guard), cross_origin),
            settings.listen,
            settings.limits,
            guard,
            InferenceRoutes(tenants, request_path, cross_origin),
        ),
        Port(
            create_pages(operators, guard), settings.admin, settings.limits, guard, console.direct
        ),
        metrics,
        readiness,
    )
