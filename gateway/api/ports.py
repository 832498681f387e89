"""What the two ports serve.

Owns the way from a path to its endpoint: inference routes first and without a framework, all else
through Starlette behind `gateway.api.guard`. Must not know what endpoints do.
Read next: `gateway.api.tenant_routes`, `gateway.api.operator_routes`.
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from starlette.applications import Starlette

from gateway.api.cross_origin import CrossOrigin, describe_preflight, is_preflight
from gateway.api.guard import Guard, create_unroutable
from gateway.api.inference_paths import InferencePaths
from gateway.api.route_table import Route
from gateway.errors import refuse_method
from gateway.inference_call import InferenceCall
from gateway.middleware.direct_routes import DirectRoutes
from gateway.middleware.exchange import HttpExchange
from gateway.request_path import RequestPath

_INFERENCE_METHOD: Final = b"POST"
_MAX_KNOWN_PATHS: Final = 2048
_MAX_KNOWN_CHARS: Final = 256
"""Together half a megabyte of paths at most, whoever makes them up."""


@dataclass(frozen=True, slots=True)
class Console:
    """What the console adds to the operators' port."""

    routes: tuple[Route, ...]
    direct: DirectRoutes
    """Requests of its pages that are answered past the framework."""


class InferenceRoutes:
    """The tenants' inference requests."""

    def __init__(
        self, routes: tuple[Route, ...], request_path: RequestPath, cross_origin: CrossOrigin
    ) -> None:
        """`routes` have been checked."""
        self._paths = InferencePaths(routes)
        self._request_path = request_path
        self._cross_origin = cross_origin
        # Clients call the same few paths again and again; the answer depends on the path alone.
        self._find_known = lru_cache(_MAX_KNOWN_PATHS)(self._paths.find)

    def find(self, path: str) -> InferenceCall | None:
        """The call that `path` makes, whatever the method; None for every other path."""
        if len(path) > _MAX_KNOWN_CHARS:
            return self._paths.find(path)
        return self._find_known(path)

    def serve(self, found: InferenceCall, exchange: HttpExchange) -> Coroutine[Any, Any, None]:
        """Answers one request, whatever happens."""
        if self._cross_origin.is_on:
            granted = self._cross_origin.grant(exchange.path, exchange.headers)
            if granted and is_preflight(exchange.method, exchange.headers):
                return _answer_preflight(exchange, granted)
            exchange.extra_headers += granted
        refusal = None
        if exchange.method != _INFERENCE_METHOD:
            refusal = refuse_method(exchange.method.decode("ascii"), (_INFERENCE_METHOD.decode(),))
        elif not found.is_account_possible:
            refusal = create_unroutable()
        return self._request_path.serve(found, exchange, refusal)


async def _answer_preflight(exchange: HttpExchange, granted: bytes) -> None:
    """What a browser is told before it sends a request from a script."""
    exchange.reply(200, b"", describe_preflight(granted, exchange.headers))
    exchange.finish()


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
