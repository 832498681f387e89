"""Every route of a port, what it demands of its caller, and the check that none demands nothing.

Owns the shape of the table; must not know the endpoints' work. A route without a declared access
or with one that its port does not offer stops the start. Read next: `gateway.api.ports`.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvariantBroken
from gateway.auth.access import Access, AnyApiToken, Needs, OperatorOnly, Public
from gateway.dialects.dialect import Dialect
from tenancy.interfaces import Principal

Page = Callable[[Request, Principal | None], Awaitable[Response]]
"""An ordinary endpoint; the principal is there whenever the route demands an API token."""


class PortKind(StrEnum):
    """The two listeners."""

    TENANTS = "tenants"
    OPERATORS = "operators"


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. Exactly one of `page` and `dialect` is set."""

    name: str
    """For metrics and logs."""
    method: str
    path: str
    """With `{account_id}` and, at the end only, `{model:path}`."""
    access: Access | None
    """None is a mistake that the start finds."""
    page: Page | None = None
    dialect: Dialect | None = None
    """Set on inference routes, which are reached before any framework."""


_OFFERED: Final[dict[PortKind, tuple[type[Access], ...]]] = {
    PortKind.TENANTS: (Public, AnyApiToken, Needs),
    PortKind.OPERATORS: (Public, OperatorOnly),
}


def check_routes(kind: PortKind, routes: Iterable[Route]) -> tuple[Route, ...]:
    """`routes`, each of which declares an access that this port offers.

    Raises: `InvariantBroken`, naming the route.
    """
    checked: list[Route] = []
    for route in routes:
        where = f"{route.method} {route.path} on the {kind} port"
        if route.access is None:
            raise InvariantBroken(f"{where} declares no permission.")
        if not isinstance(route.access, _OFFERED[kind]):
            raise InvariantBroken(f"{where} cannot demand {type(route.access).__name__}.")
        if isinstance(route.access, Needs) and "{account_id}" not in route.path:
            raise InvariantBroken(f"{where} needs a permission but names no account.")
        if (route.page is None) == (route.dialect is None):
            raise InvariantBroken(f"{where} must have either a page or a dialect.")
        checked.append(route)
    return tuple(checked)
