"""The ASGI applications of the two ports.

Owns the way from a path to its endpoint: inference routes first and without a framework, all else
through Starlette behind `gateway.api.guard`. Must not know what endpoints do.
Read next: `gateway.api.tenant_routes`, `gateway.api.operator_routes`.
"""

from typing import Final

from starlette.applications import Starlette

from contracts.errors import MethodNotAllowed, ServiceError
from contracts.ids import AccountId, is_account_id
from gateway.api.guard import Guard, create_unroutable
from gateway.api.inference_paths import InferencePaths
from gateway.api.route_table import Route
from gateway.dialects.dialect import Dialect
from gateway.errors import find_row, format_error_headers
from gateway.middleware.exchange import HttpExchange, Receive, Scope, Send
from gateway.request_path import InferenceCall, RequestPath
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
        match = self._paths.find(scope["path"])
        if match is None:
            await self._pages(scope, receive, send)
            return
        exchange = HttpExchange(scope, receive, self._limits)
        if scope["method"] == _INFERENCE_METHOD and is_account_id(match.account_id):
            call = InferenceCall(match.route, AccountId(match.account_id), match.model)
            await self._request_path.serve(call, exchange)
        else:
            await _refuse(match.route.dialect, scope, exchange)


def create_pages(routes: tuple[Route, ...], guard: Guard) -> Starlette:
    """The framework's application for every route with a page."""
    return Starlette(
        routes=[guard.wrap(route) for route in routes if route.page is not None],
        exception_handlers=guard.exception_handlers,
    )


async def _refuse(dialect: Dialect, scope: Scope, exchange: HttpExchange) -> None:
    """Answers what is known to be wrong before any request begins."""
    error: ServiceError = create_unroutable(scope["path"])
    if scope["method"] != _INFERENCE_METHOD:
        error = MethodNotAllowed(f"{scope['method']} not supported for requested URI.")
    headers = format_error_headers(error)
    await exchange.reply(find_row(error).status, dialect.render_error(error), headers)
