"""The routes of the operators' port, which tenants never reach.

Read next: `gateway.api.route_table`, `gateway.api.operator_pages`.
"""

from collections.abc import Callable

from gateway.api.health_pages import HealthPages
from gateway.api.operator_pages import OperatorPages
from gateway.api.route_table import PortKind, Route, check_routes
from gateway.auth.access import OPERATOR, PUBLIC
from gateway.routing.fleet import Fleet
from gateway.sources import Sources
from gateway.telemetry import Telemetry


def create_operator_routes(
    fleet: Fleet, is_ready: Callable[[], bool], telemetry: Telemetry, sources: Sources
) -> tuple[Route, ...]:
    """The checked table."""
    health = HealthPages(is_ready)
    pages = OperatorPages(fleet, telemetry, sources)
    return check_routes(
        PortKind.OPERATORS,
        (
            Route("metrics", "GET", "/metrics", OPERATOR, pages.metrics),
            Route("nodes", "GET", "/operator/v1/nodes", OPERATOR, pages.nodes),
            Route("operators_live", "GET", "/health/live", PUBLIC, health.live),
            Route("operators_ready", "GET", "/health/ready", PUBLIC, health.ready),
        ),
    )
