"""Every route of a port, what it demands of its caller, and the check that none demands nothing.

Owns the shape of the table; must not know the endpoints' work. A route without a declared access
or with one that its port does not offer stops the start. Read next: `gateway.api.ports`.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvariantBroken, ServiceError
from gateway.api.forms import FormReader
from gateway.api.query_fields import QueryField
from gateway.auth.access import (
    Access,
    AnyApiToken,
    Needs,
    NeedsForOwn,
    OperatorOnly,
    OperatorOrStandby,
    OperatorSession,
    Public,
)
from gateway.auth.caller import Caller
from gateway.dialects.dialect import Dialect

Page = Callable[[Request, Caller], Awaitable[Response]]
"""An ordinary endpoint; the caller is whom the route demands."""
Refusal = Callable[[Request, ServiceError], Response]
"""How an error looks to those who ask a route."""
_WRITING_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


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
    form: FormReader[Any] | None = None
    """What a page's body may hold, set on every page whose method brings one: nothing else does."""
    query: tuple[QueryField, ...] = ()
    """What a page's query may hold, for the document of the API."""
    reply: Any = None
    """What a page answers with, for the same; None stands for an envelope of anything."""
    media: tuple[str, ...] = ()
    """Media types of a page whose answer is no JSON, for the same."""
    refuse: Refusal | None = None
    """None: errors are envelopes of JSON."""


_OFFERED: Final[dict[PortKind, tuple[type[Access], ...]]] = {
    PortKind.TENANTS: (Public, AnyApiToken, Needs, NeedsForOwn),
    PortKind.OPERATORS: (Public, OperatorOnly, OperatorOrStandby, OperatorSession),
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
        if isinstance(route.access, NeedsForOwn) and "{account_id}" in route.path:
            raise InvariantBroken(f"{where} names an account and must check whose it is.")
        if route.page is not None and (route.form is None) == (route.method in _WRITING_METHODS):
            raise InvariantBroken(f"{where} must say what its body holds, if it has one.")
        if (route.page is None) == (route.dialect is None):
            raise InvariantBroken(f"{where} must have either a page or a dialect.")
        checked.append(route)
    return tuple(checked)
