"""The ASGI applications of the two ports.

Owns the way from a path to its endpoint: inference routes first and without a framework, all else
through Starlette behind `gateway.api.guard`. Must not know what endpoints do.
Read next: `gateway.api.tenant_routes`, `gateway.api.operator_routes`.
"""

from typing import Final

from starlette.applications import Starlette

from contracts.errors import MethodNotAllowed, ServiceError
from contracts.ids import is_account_id
from gateway.api.guard import Guard, create_unroutable
from gateway.api.inference_paths import InferencePaths
from gateway.api.route_table import Route
from gateway.middleware.exchange import HttpExchange, Receive, Scope, Send
from gateway.request_path import RequestPath
from gateway.settings import LimitSettings

_INFERENCE_METHOD: Final = "POST"


class TenantPort:
    """What tenants reach."""

    def __init__(
        self,
        routes: tuple[Route, ...],
        guard: Guard,
        request_path: RequestPath,
        limits: LimitSettings,
    ) -> None:
        """`routes` have been checked."""
        self._paths = InferencePaths(routes)
        self._pages = create_pages(routes, guard)
        self._request_path = request_path
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        call = self._paths.find(scope["path"])
        if call is None:
            await self._pages(scope, receive, send)
            return
        exchange = HttpExchange(scope, receive, self._limits)
        await self._request_path.serve(call, exchange, _find_refusal(scope, call.account_id))


def create_pages(routes: tuple[Route, ...], guard: Guard) -> Starlette:
    """The framework's application for every route with a page."""
    application = Starlette(
        routes=[guard.wrap(route) for route in routes if route.page is not None],
        exception_handlers=guard.exception_handlers,
    )
    # A path with one slash too many is no route; the framework would send the client on to
    # whatever host its Host header names.
    application.router.redirect_slashes = False
    return application


def _find_refusal(scope: Scope, account_id: str) -> ServiceError | None:
    """What is wrong with an inference request's method or address, None when nothing is."""
    if scope["method"] != _INFERENCE_METHOD:
        return MethodNotAllowed(f"{scope['method']} not supported for requested URI.")
    return None if is_account_id(account_id) else create_unroutable(scope["path"])
