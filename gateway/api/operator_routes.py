"""The routes of the operators' port, which tenants never reach.

Read next: `gateway.api.route_table`, `gateway.api.operator_account_pages`.
"""

from collections.abc import Callable

from gateway.api.control_routes import list_control_routes
from gateway.api.health_pages import HealthPages
from gateway.api.operator_pages import OperatorPages
from gateway.api.placement_pages import PlacementPages, list_placement_routes
from gateway.api.route_table import PortKind, Route, check_routes
from gateway.api.services import PageServices
from gateway.auth.access import OPERATOR, PUBLIC


def create_operator_routes(
    services: PageServices, is_ready: Callable[[], bool], console: tuple[Route, ...] = ()
) -> tuple[Route, ...]:
    """The checked table, the console's pages with it."""
    health = HealthPages(is_ready)
    pages = OperatorPages(services.fleet, services.telemetry, services.sources)
    placement = PlacementPages(services.desk, services.administrations, services.sources)
    return check_routes(
        PortKind.OPERATORS,
        (
            Route("metrics", "GET", "/metrics", OPERATOR, pages.metrics),
            Route("nodes", "GET", "/operator/v1/nodes", OPERATOR, pages.nodes),
            *list_control_routes(services),
            *list_placement_routes(placement),
            Route("operators_live", "GET", "/health/live", PUBLIC, health.live),
            Route("operators_ready", "GET", "/health/ready", PUBLIC, health.ready),
            *console,
        ),
    )


def create_metrics_routes(services: PageServices) -> tuple[Route, ...]:
    """The checked table of the port for metrics: whoever reaches it may read them."""
    pages = OperatorPages(services.fleet, services.telemetry, services.sources)
    route = Route("metrics", "GET", "/metrics", PUBLIC, pages.metrics)
    return check_routes(PortKind.OPERATORS, (route,))
