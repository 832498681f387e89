"""Stands before every ordinary endpoint: authentication, the account's turn, errors as envelopes.

Owns the order of these and the headers of such answers; must not know what endpoints do. The
account is the one in the matched route, never one from a header, query or body.
Read next: `gateway.auth.authenticator`, `gateway.errors`.
"""

import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from contracts.errors import (
    InvalidIdentifier,
    InvalidRequest,
    InvariantBroken,
    NotFound,
    ServiceError,
)
from contracts.ids import AccountId, is_account_id
from gateway.api.route_table import Route
from gateway.api.turns import Turns
from gateway.auth.access import Access, OperatorOnly, OperatorOrStandby, OperatorSession, Public
from gateway.auth.caller import Caller
from gateway.auth.composition import Authenticators
from gateway.errors import (
    find_row,
    format_error_headers,
    list_error_headers,
    refuse_method,
    render_error,
)
from gateway.middleware.direct_routes import Refusal
from gateway.request_context import OpenRequests, RequestContext
from gateway.telemetry import Telemetry

log = structlog.get_logger(__name__)
JSON: Final = "application/json"
_READING_METHODS: Final = frozenset({"GET", "HEAD"})
_NO_ROUTE: Final = "There is no route for this URI."
_CALLS: Final = ("/completions", "/embeddings", "/responses", "/messages", "/models")
"""How paths end that clients of OpenAI and Anthropic make of any base URL."""
_BASE_URL: Final = (
    " A base URL is http://HOST/client/v4/accounts/ACCOUNT_ID/ai for clients of Anthropic, and "
    "/v1 follows for those of OpenAI."
)
_STARTLED: Final = "Something went wrong on our side."


class Guard:
    """Wraps pages of both ports."""

    def __init__(
        self,
        requests: OpenRequests,
        authenticators: Authenticators,
        telemetry: Telemetry,
        turns: Turns,
    ) -> None:
        """`requests` gives each answer its id, `turns` bounds what one account asks at once."""
        self._requests = requests
        self._authenticators = authenticators
        self._telemetry = telemetry
        self._turns = turns

    @property
    def exception_handlers(self) -> dict[Any, Callable[[Request, Any], Awaitable[Response]]]:
        """What the framework raises when no route fits, as answers of ours."""
        return {HTTPException: self._answer_unrouted}

    def wrap(self, route: Route) -> StarletteRoute:
        """The framework's route: `route.page` behind its demand."""
        assert route.page is not None
        assert route.access is not None
        page, access, refuse = route.page, route.access, route.refuse or _refuse

        async def endpoint(request: Request) -> Response:
            context = self._requests.begin(route.name)
            try:
                caller = await self._authenticate(request, access, context)
                async with self._take_turn(caller):
                    response = await page(request, caller)
                if route.method not in _READING_METHODS:
                    # What was changed through this gateway holds here at once.
                    await self._authenticators.cache.poll_epoch()
            except ServiceError as error:
                response = refuse(request, error)
            except ClientDisconnect:  # nobody receives this, or what could not be read is told
                response = refuse(request, InvalidRequest("The request's body has no end."))
            except Exception as error:
                _log_defect(route, error)
                response = refuse(request, InvariantBroken(_STARTLED))
            return self._finish(context, response)

        return StarletteRoute(route.path, endpoint, methods=[route.method], name=route.name)

    def _take_turn(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """The account's turn; the platform's own people wait for nobody."""
        if caller.principal is None:
            return nullcontext()
        return self._turns.take(caller.principal.account_id)

    async def _authenticate(
        self, request: Request, access: Access, context: RequestContext
    ) -> Caller:
        """Whom the route demands. Raises: what the authenticators raise."""
        headers = request.scope["headers"]
        peer = None if request.client is None else request.client.host
        address = self._authenticators.addresses.find(peer, headers)
        if isinstance(access, Public):
            return Caller(context.request_id, address)
        account_id = request.path_params.get("account_id")
        is_routable = account_id is None or is_account_id(account_id)
        if isinstance(access, OperatorOrStandby) and self._authenticators.standby.is_shown(headers):
            return Caller(context.request_id, address, is_standby=True)
        if isinstance(access, OperatorOnly | OperatorOrStandby):
            operator = await self._authenticators.operators.authenticate(headers, peer)
            if not is_routable:
                raise create_unroutable()
            return Caller(context.request_id, address, operator=operator)
        if isinstance(access, OperatorSession):
            session, operator = await self._authenticators.sessions.find(headers)
            if not is_routable:
                raise create_unroutable()
            return Caller(context.request_id, address, operator=operator, session=session)
        if not is_routable:
            raise create_unroutable()
        principal = await self._authenticators.api_tokens.authenticate(
            headers, None if account_id is None else AccountId(account_id), access, peer
        )
        return Caller(context.request_id, address, principal)

    async def _answer_unrouted(self, request: Request, error: HTTPException) -> Response:
        """The envelope for a path or method that no route has."""
        context = self._requests.begin("unrouted")
        if error.status_code == 405:
            refusal = refuse_method(request.method, _list_methods(request))
            return self._finish(context, _to_response(refusal))
        is_call = request.scope["path"].endswith(_CALLS)
        refusal = NotFound(_NO_ROUTE + _BASE_URL if is_call else _NO_ROUTE)
        return self._finish(context, _to_response(refusal))

    def refuse(self, error: ServiceError) -> Refusal:
        """The answer to what could not be read as a request."""
        context, status = self._requests.begin("unparsed"), find_row(error).status
        headers = format_error_headers(error) + self._requests.format_headers(context)
        duration_s = self._requests.end(context)
        self._telemetry.count_request(context.route, status, context.model, duration_s)
        return Refusal(status, headers, render_error(error))

    def _finish(self, context: RequestContext, response: Response) -> Response:
        """`response` with the request's ids, and counted."""
        duration_s = self._requests.end(context)
        self._telemetry.count_request(
            context.route, response.status_code, context.model, duration_s
        )
        response.raw_headers.extend(self._requests.list_headers(context))
        return response


def create_unroutable() -> InvalidIdentifier:
    """The error of an address whose account id cannot be one.

    It does not quote the address: what stands where an id should could be a secret gone astray.
    """
    return InvalidIdentifier("Could not route to this URI: its object identifier is invalid.")


def _list_methods(request: Request) -> set[str]:
    """What may be done with the path of `request`, which several routes may share."""
    routes: list[Any] = request.app.routes
    found = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in found for method in route.methods}


def _refuse(request: Request, error: ServiceError) -> Response:
    """`error` as most routes tell it."""
    return _to_response(error)


def _to_response(error: ServiceError) -> Response:
    """`error` as an answer."""
    response = Response(render_error(error), find_row(error).status, media_type=JSON)
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
