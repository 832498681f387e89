"""The life of a request inside the gateway, in one pass.

authenticate → parse → admit → route → forward → translate → settle. Owns that order and what the
client gets when a step refuses; each step lives in a module of its own. Must not know sockets or
which dialect it speaks. Read next: `gateway.forwarding`, `gateway.answering`.
"""

import traceback
from typing import Final

import msgspec
import structlog

from contracts.errors import InvariantBroken, ServiceError
from contracts.ids import AccountId
from gateway.admission.limits import Admission
from gateway.answering import answer_error, answer_events, answer_whole, create_renderer
from gateway.auth.access import Access
from gateway.auth.authenticator import Authenticator
from gateway.dialects.dialect import Dialect, ParsedRequest
from gateway.forwarding import Forwarded, Forwarder
from gateway.metering.meter import Meter
from gateway.middleware.exchange import HttpExchange
from gateway.request_context import OpenRequests, RequestContext
from gateway.telemetry import Telemetry

log = structlog.get_logger(__name__)
CLIENT_GONE: Final = 499
"""The status in metrics of a client that left; nobody receives it."""


class InferenceRoute(msgspec.Struct, frozen=True):
    """What a route says of its requests."""

    name: str
    access: Access
    dialect: Dialect


class InferenceCall(msgspec.Struct, frozen=True):
    """What is known of a request before anything of it is read."""

    route: InferenceRoute
    account_id: AccountId
    model: str | None
    """The model named in the path, as it came."""


class RequestPath:
    """Serves inference requests of every dialect."""

    def __init__(
        self,
        requests: OpenRequests,
        authenticator: Authenticator,
        admission: Admission,
        forwarder: Forwarder,
        meter: Meter,
        telemetry: Telemetry,
    ) -> None:
        """One object per step; those that a deployment does without are null objects."""
        self._requests = requests
        self._authenticator = authenticator
        self._admission = admission
        self._forwarder = forwarder
        self._meter = meter
        self._telemetry = telemetry

    async def serve(
        self, call: InferenceCall, exchange: HttpExchange, refusal: ServiceError | None = None
    ) -> None:
        """Answers one request; every way to fail ends in an answer, too.

        `refusal` is set when the address or the method has ruled the request out already.
        """
        context = self._requests.begin(call.route.name)
        status = CLIENT_GONE
        try:
            if refusal is not None:
                raise refusal
            status = await self._answer(call, context, exchange)
        except ServiceError as error:
            status = await self._refuse(call, context, exchange, error)
        except Exception as error:
            _log_defect(context, error)
            defect = InvariantBroken("Something went wrong on our side.")
            status = await self._refuse(call, context, exchange, defect)
        finally:
            if not exchange.finish():
                status = CLIENT_GONE
                self._telemetry.count_disconnect()
            duration_s = self._requests.end(context)
            self._telemetry.count_request(context.route, status, context.model, duration_s)

    async def _answer(
        self, call: InferenceCall, context: RequestContext, exchange: HttpExchange
    ) -> int:
        """The status of the answer, once it is sent. Raises: `ServiceError` leaves, before it."""
        self._requests.require_room()
        principal = await self._authenticator.authenticate(
            exchange.headers, call.account_id, call.route.access
        )
        context.principal = principal
        body = await exchange.read_body()
        if body is None:
            return CLIENT_GONE
        parsed = call.route.dialect.parse(body, call.model)
        lease = await self._admission.admit(principal, parsed.generate)
        try:
            forwarded = await self._forwarder.forward(context, parsed.generate, exchange)
            try:
                return await self._translate(call, context, exchange, parsed, forwarded)
            finally:
                self._forwarder.release(forwarded)
        finally:
            lease.release(context.usage)
            await self._settle(context)

    async def _translate(
        self,
        call: InferenceCall,
        context: RequestContext,
        exchange: HttpExchange,
        parsed: ParsedRequest,
        forwarded: Forwarded,
    ) -> int:
        """The status of the answer, once all of it is sent."""
        dialect = call.route.dialect
        headers = self._requests.format_headers(context)
        if not parsed.generate.stream:
            return await answer_whole(context, exchange, dialect, forwarded.events, headers)
        await exchange.start_events(headers)
        renderer = create_renderer(context, dialect, parsed.includes_usage)
        return await answer_events(
            context, exchange, renderer, forwarded, lambda: self._count_first_text(context)
        )

    async def _refuse(
        self,
        call: InferenceCall,
        context: RequestContext,
        exchange: HttpExchange,
        error: ServiceError,
    ) -> int:
        """The status of `error`, once it is sent."""
        headers = self._requests.format_headers(context)
        return await answer_error(exchange, call.route.dialect, error, headers)

    async def _settle(self, context: RequestContext) -> None:
        """Hands what was consumed to the books."""
        if context.usage is not None:
            self._telemetry.count_usage(context.model, context.usage)
        await self._meter.settle(context)

    def _count_first_text(self, context: RequestContext) -> None:
        self._telemetry.count_first_text(context.model, self._requests.measure_s(context))


def _log_defect(context: RequestContext, error: Exception) -> None:
    """Logs where an unexpected error came from, without its message, which could quote a prompt."""
    log.error(
        "request_failed_unexpectedly",
        request_id=context.request_id,
        route=context.route,
        error=type(error).__name__,
        frames=traceback.format_tb(error.__traceback__),
    )
