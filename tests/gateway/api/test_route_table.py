"""No route without a demand: the start fails otherwise."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvariantBroken
from gateway.api.forms import NO_FORM
from gateway.api.operator_routes import create_operator_routes
from gateway.api.route_table import PortKind, Route, check_routes
from gateway.api.services import PageServices
from gateway.api.tenant_routes import create_tenant_routes
from gateway.auth.access import ANY_API_TOKEN, OPERATOR, PUBLIC, Needs, NeedsForOwn, Public
from gateway.auth.caller import Caller
from gateway.dialects.workers_ai import WORKERS_AI
from gateway.sources import create_sources
from gateway.telemetry import Telemetry
from tenancy.actors import Actor
from tenancy.administration import Administration
from tenancy.permissions import Permission
from tests.gateway.control_requests import NO_FINETUNES, create_desk, create_drains, renew_key
from tests.gateway.routing.fleet_words import create_fleet

NEEDS = Needs(Permission.WORKERS_AI_READ)
OWN = NeedsForOwn(Permission.WORKERS_AI_READ)
PATH = "/client/v4/accounts/{account_id}/x"


async def answer(request: Request, caller: Caller) -> Response:
    """A page."""
    return Response()


class NoTenancy:
    """Is never asked: no page runs here."""

    def act_as(self, actor: Actor) -> Administration:
        raise NotImplementedError


NO_LEDGER: Any = None
"""Is never asked either."""


def list_routes() -> tuple[Route, ...]:
    """The tables of both ports."""
    sources = create_sources()
    fleet = create_fleet(sources=sources)

    def is_ready() -> bool:
        return True

    desk = create_desk(fleet, sources)
    drains = create_drains(fleet, sources)
    services = PageServices(
        fleet, Telemetry(), sources, NoTenancy(), NO_LEDGER, desk, drains, renew_key, NO_FINETUNES
    )
    operators = create_operator_routes(services, is_ready)
    return create_tenant_routes(services, is_ready) + operators


def test_every_route_declares_what_it_demands() -> None:
    assert all(route.access is not None for route in list_routes())


def test_only_health_and_the_apis_own_description_are_public() -> None:
    public = {route.path for route in list_routes() if isinstance(route.access, Public)}
    assert public == {"/health/live", "/health/ready", "/openapi.json"}


@pytest.mark.parametrize(
    ("kind", "route", "complaint"),
    [
        (PortKind.TENANTS, Route("x", "GET", PATH, None, answer), "no permission"),
        (PortKind.OPERATORS, Route("x", "GET", "/x", None, answer), "no permission"),
        (PortKind.TENANTS, Route("x", "GET", "/x", OPERATOR, answer), "cannot demand"),
        (PortKind.OPERATORS, Route("x", "GET", "/x", ANY_API_TOKEN, answer), "cannot"),
        (PortKind.TENANTS, Route("x", "GET", "/x", NEEDS, answer), "names no account"),
        (PortKind.TENANTS, Route("x", "GET", PATH, OWN, answer), "check whose it is"),
        (PortKind.TENANTS, Route("x", "PUT", PATH, NEEDS, answer), "what its body holds"),
        (PortKind.TENANTS, Route("x", "GET", PATH, NEEDS, answer, form=NO_FORM), "body holds"),
        (PortKind.TENANTS, Route("x", "GET", PATH, NEEDS), "page or a dialect"),
        (PortKind.TENANTS, Route("x", "GET", PATH, NEEDS, answer, WORKERS_AI), "page or"),
    ],
)
def test_a_table_with_a_hole_stops_the_start(kind: PortKind, route: Route, complaint: str) -> None:
    with pytest.raises(InvariantBroken, match=complaint):
        check_routes(kind, [route])


def test_a_table_without_holes_does_not() -> None:
    good = Route("x", "GET", "/x", PUBLIC, answer)
    assert check_routes(PortKind.TENANTS, [good]) == (good,)


def test_names_are_unique_for_metrics() -> None:
    names = [route.name for route in list_routes()]
    assert len(names) == len(set(names))
