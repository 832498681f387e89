"""The routes of the operators' port, which tenants never reach.

Read next: `gateway.api.route_table`, `gateway.api.operator_account_pages`.
"""

from collections.abc import Callable
from typing import Any

from gateway.api.control_routes import list_control_routes
from gateway.api.finetune_routes import list_operator_finetune_routes
from gateway.api.health_pages import Health, HealthPages
from gateway.api.node_pages import NodePages
from gateway.api.node_routes import list_node_routes
from gateway.api.openapi import ApiDocument
from gateway.api.operator_pages import OperatorPages
from gateway.api.placement_pages import PlacementPages
from gateway.api.placement_routes import list_placement_routes
from gateway.api.route_table import PortKind, Route, check_routes
from gateway.api.services import PageServices
from gateway.auth.access import OPERATOR, PUBLIC


def create_operator_routes(
    services: PageServices, is_ready: Callable[[], bool], console: tuple[Route, ...] = ()
) -> tuple[Route, ...]:
    """The checked table, the console's pages with it."""
    health = HealthPages(is_ready)
    pages = OperatorPages(services.telemetry)
    placement = PlacementPages(services.desk, services.administrations, services.sources)
    routes = (
        Route("metrics", "GET", "/metrics", OPERATOR, pages.metrics, media=("text/plain",)),
        *list_control_routes(services),
        *list_operator_finetune_routes(services),
        *list_node_routes(NodePages(services)),
        *list_placement_routes(placement),
        Route("operators_live", "GET", "/health/live", PUBLIC, health.live, reply=Health),
        Route("operators_ready", "GET", "/health/ready", PUBLIC, health.ready, reply=Health),
    )
    document = Route(
        "operators_openapi",
        "GET",
        "/openapi.json",
        PUBLIC,
        ApiDocument(routes, "Hearth, for operators", "v1").page,
        reply=dict[str, Any],
    )
    return check_routes(PortKind.OPERATORS, (*routes, document, *console))


def create_metrics_routes(services: PageServices) -> tuple[Route, ...]:
    """The checked table of the port for metrics: whoever reaches it may read them."""
    pages = OperatorPages(services.telemetry)
    route = Route("metrics", "GET", "/metrics", PUBLIC, pages.metrics)
    return check_routes(PortKind.OPERATORS, (route,))
