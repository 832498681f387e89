"""No route without a demand: the start fails otherwise."""

import pytest

from contracts.errors import InvariantBroken
from gateway.api.operator_routes import create_operator_routes
from gateway.api.route_table import PortKind, Route, check_routes
from gateway.api.tenant_routes import create_tenant_routes
from gateway.api.token_pages import verify_token
from gateway.auth.access import ANY_API_TOKEN, OPERATOR, PUBLIC, Needs, Public
from gateway.dialects.workers_ai import WORKERS_AI
from gateway.routing.choose_node import RouteBounds
from gateway.routing.fleet import Fleet
from gateway.sources import create_sources
from gateway.telemetry import Telemetry
from tenancy.interfaces import Permission

NEEDS = Needs(Permission.WORKERS_AI_READ)
PATH = "/client/v4/accounts/{account_id}/x"


def list_routes() -> tuple[Route, ...]:
    """The tables of both ports."""
    sources = create_sources()
    fleet = Fleet([], RouteBounds(5, 10), sources)

    def is_ready() -> bool:
        return True

    operators = create_operator_routes(fleet, is_ready, Telemetry(), sources)
    return create_tenant_routes(fleet, is_ready) + operators


def test_every_route_declares_what_it_demands() -> None:
    assert all(route.access is not None for route in list_routes())


def test_only_health_is_public() -> None:
    public = {route.path for route in list_routes() if isinstance(route.access, Public)}
    assert public == {"/health/live", "/health/ready"}


@pytest.mark.parametrize(
    ("kind", "route", "complaint"),
    [
        (PortKind.TENANTS, Route("x", "GET", PATH, None, verify_token), "no permission"),
        (PortKind.OPERATORS, Route("x", "GET", "/x", None, verify_token), "no permission"),
        (PortKind.TENANTS, Route("x", "GET", "/x", OPERATOR, verify_token), "cannot demand"),
        (PortKind.OPERATORS, Route("x", "GET", "/x", ANY_API_TOKEN, verify_token), "cannot"),
        (PortKind.TENANTS, Route("x", "GET", "/x", NEEDS, verify_token), "names no account"),
        (PortKind.TENANTS, Route("x", "GET", PATH, NEEDS), "page or a dialect"),
        (PortKind.TENANTS, Route("x", "GET", PATH, NEEDS, verify_token, WORKERS_AI), "page or"),
    ],
)
def test_a_table_with_a_hole_stops_the_start(kind: PortKind, route: Route, complaint: str) -> None:
    with pytest.raises(InvariantBroken, match=complaint):
        check_routes(kind, [route])


def test_a_table_without_holes_does_not() -> None:
    good = Route("x", "GET", "/x", PUBLIC, verify_token)
    assert check_routes(PortKind.TENANTS, [good]) == (good,)


def test_names_are_unique_for_metrics() -> None:
    names = [route.name for route in list_routes()]
    assert len(names) == len(set(names))
