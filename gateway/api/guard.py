"""Stands before every ordinary endpoint: authentication first, errors as envelopes last.

Owns the order of the two and the headers of such answers; must not know what endpoints do. The
account is the one in the matched route, never one from a header, query or body.
Read next: `gateway.auth.authenticator`, `gateway.errors`.
"""

import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from contracts.errors import (
    InvalidIdentifier,
    InvariantBroken,
    MethodNotAllowed,
    NotFound,
    ServiceError,
)
from contracts.ids import AccountId, is_account_id
from gateway.api.route_table import Route
from gateway.auth.access import Access, OperatorOnly, Public
from gateway.auth.authenticator import Authenticator, OperatorAuthenticator
from gateway.errors import find_row, list_error_headers, render_envelope, render_openai_error
from gateway.request_context import OpenRequests, RequestContext
from gateway.telemetry import Telemetry
from tenancy.interfaces import Principal

log = structlog.get_logger(__name__)
JSON: Final = "application/json"
OPENAI_PATH: Final = "/ai/v1/"
_STARTLED: Final = "Something went wrong on our side."


class Guard:
    """Wraps pages of both ports."""

    def __init__(
        self,
        requests: OpenRequests,
        api_tokens: Authenticator,
        operators: OperatorAuthenticator,
        telemetry: Telemetry,
    ) -> None:
        """`requests` gives each answer its id."""
        self._requests = requests
        self._api_tokens = api_tokens
        self._operators = operators
        self._telemetry = telemetry

    @property
    def exception_handlers(self) -> dict[Any, Callable[[Request, Any], Awaitable[Response]]]:
        """What the framework raises when no route fits, as answers of ours."""
        return {HTTPException: self._answer_unrouted}

    def wrap(self, route: Route) -> StarletteRoute:
        """The framework's route: `route.page` behind its demand."""
        assert route.page is not None
        assert route.access is not None
        page, access = route.page, route.access

        async def endpoint(request: Request) -> Response:
            context = self._requests.begin(route.name)
            try:
                principal = await self._authenticate(request, access)
                response = await page(request, principal)
            except ServiceError as error:
                response = _to_response(request, error)
            except Exception as error:
                _log_defect(route, error)
                response = _to_response(request, InvariantBroken(_STARTLED))
            return self._finish(context, response)

        return StarletteRoute(route.path, endpoint, methods=[route.method], name=route.name)

    async def _authenticate(self, request: Request, access: Access) -> Principal | None:
        """The principal, None where the route asks for none. Raises as the authenticators do."""
        headers = request.scope["headers"]
        if isinstance(access, Public):
            return None
        if isinstance(access, OperatorOnly):
            await self._operators.authenticate(headers)
            return None
        account_id = request.path_params.get("account_id")
        if account_id is not None and not is_account_id(account_id):
            raise create_unroutable(request.scope["path"])
        return await self._api_tokens.authenticate(
            headers, None if account_id is None else AccountId(account_id), access
        )

    async def _answer_unrouted(self, request: Request, error: HTTPException) -> Response:
        """The envelope for a path or method that no route has."""
        context = self._requests.begin("unrouted")
        if error.status_code == 405:
            message = f"{request.method} not supported for requested URI."
            return self._finish(context, _to_response(request, MethodNotAllowed(message)))
        refusal = NotFound("There is no route for this URI.")
        return self._finish(context, _to_response(request, refusal))

    def _finish(self, context: RequestContext, response: Response) -> Response:
        """`response` with the request's ids, and counted."""
        duration_s = self._requests.end(context)
        self._telemetry.count_request(
            context.route, response.status_code, context.model, duration_s
        )
        response.raw_headers.extend(self._requests.list_headers(context))
        return response


def create_unroutable(path: str) -> InvalidIdentifier:
    """The error of an address whose account id cannot be one."""
    return InvalidIdentifier(
        f"Could not route to {path[:256]}, perhaps your object identifier is invalid?"
    )


def _to_response(request: Request, error: ServiceError) -> Response:
    """`error` in the form that the clients of this path read."""
    is_openai = OPENAI_PATH in request.scope["path"]
    render = render_openai_error if is_openai else render_envelope
    response = Response(render(error), find_row(error).status, media_type=JSON)
    response.raw_headers.extend(list_error_headers(error))
    return response


def _log_defect(route: Route, error: Exception) -> None:
    """Logs where an unexpected error came from, without its message, which could quote a client."""
    log.error(
        "page_failed_unexpectedly",
        route=route.name,
        error=type(error).__name__,
        frames=traceback.format_tb(error.__traceback__),
    )
