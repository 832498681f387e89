"""The life of a request inside the gateway, in one pass.

authenticate → once per key → parse → admit → route → forward → translate → settle, which comes
before the last byte. Owns that order and what the client gets when a step refuses; each step lives
in a module of its own. Must not know sockets or which dialect it speaks.
Read next: `gateway.forwarding`, `gateway.answering`.
"""

import traceback
from typing import Final

import structlog

from contracts.errors import InvariantBroken, ServiceError
from contracts.usage import Outcome
from gateway.answer_memory import AnswerMemory, Claim, NoClaim, find_key
from gateway.answering import EventPump, answer_error, answer_whole, create_head
from gateway.auth.authenticator import Authenticator
from gateway.dialects.dialect import Body, ParsedRequest
from gateway.forwarding import Forwarded, Forwarder, is_streaming
from gateway.inference_call import InferenceCall
from gateway.middleware.exchange import HttpExchange
from gateway.request_context import OpenRequests, RequestContext
from gateway.settlement import Books, Settlement
from gateway.telemetry import Step, Telemetry

log = structlog.get_logger(__name__)
CLIENT_GONE: Final = 499
"""The status in metrics of a client that left; nobody receives it."""
_NO_CLAIM: Final = NoClaim()
_REPLAYED: Final = b"idempotent-replayed: true\r\n"


class RequestPath:
    """Serves inference requests of every dialect."""

    def __init__(
        self,
        requests: OpenRequests,
        authenticator: Authenticator,
        books: Books,
        forwarder: Forwarder,
        memory: AnswerMemory,
        telemetry: Telemetry,
    ) -> None:
        """One object per step."""
        self._requests = requests
        self._authenticator = authenticator
        self._books = books
        self._forwarder = forwarder
        self._memory = memory
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
            status = await self._refuse(context, exchange, error)
        except Exception as error:
            _log_defect(context, error)
            defect = InvariantBroken("Something went wrong on our side.")
            status = await self._refuse(context, exchange, defect)
        finally:
            if not exchange.finish():
                status = CLIENT_GONE
                self._telemetry.count_disconnect()
            duration_s = self._requests.end(context)
            self._telemetry.count_request(context.route, status, context.model, duration_s)
            self._count_gap(context, duration_s)
            log.debug(
                "request_served",
                request_id=context.request_id,
                route=context.route,
                status=status,
                model=context.model,
                node_id=context.node_id,
                attempts=context.num_attempts,
                duration_s=round(duration_s, 4),
            )

    async def _answer(
        self, call: InferenceCall, context: RequestContext, exchange: HttpExchange
    ) -> int:
        """The status of the answer, once it is sent. Raises: `ServiceError` leaves, before it."""
        self._requests.require_room()
        principal = await self._authenticator.authenticate(
            exchange.headers, call.account_id, call.route.access, exchange.peer
        )
        context.principal = principal
        self._forwarder.require_entry(context)
        body = exchange.take_body() or await exchange.read_body()
        if body is None:
            return CLIENT_GONE
        key = find_key(exchange.headers)
        if key is None:
            return await self._answer_body(call, context, exchange, body, _NO_CLAIM)
        named = call.route.name.encode(), (call.model or "").encode()
        claim = await self._memory.claim(principal.account_id, key, *named, body)
        if isinstance(claim, bytes):
            exchange.reply(200, claim, _REPLAYED + self._requests.format_headers(context))
            return 200
        try:
            return await self._answer_body(call, context, exchange, body, claim)
        finally:
            claim.forget()  # unless it was settled before

    async def _answer_body(
        self,
        call: InferenceCall,
        context: RequestContext,
        exchange: HttpExchange,
        body: Body,
        claim: Claim | NoClaim,
    ) -> int:
        """The same for a body whose sender is known."""
        principal = context.principal
        assert principal is not None
        parsed = call.parse(body, principal, self._forwarder.find_model)
        request = parsed.request
        settlement = await self._admit(context, parsed, len(body))
        try:
            forwarded = await self._forwarder.forward(
                context, request, exchange, settlement.confirm
            )
            try:
                return await self._translate(
                    context, exchange, parsed, forwarded, claim, settlement
                )
            finally:
                self._forwarder.release(forwarded)
                context.usage = forwarded.read_usage()
        finally:
            # Only an answer that never came to its end is not settled yet.
            is_lost = exchange.is_lost
            outcome = Outcome.ABORTED if is_lost else Outcome.FAILED
            await settlement.settle(outcome, is_charged=is_lost or exchange.has_started)

    async def _translate(
        self,
        context: RequestContext,
        exchange: HttpExchange,
        parsed: ParsedRequest,
        forwarded: Forwarded,
        claim: Claim | NoClaim,
        settlement: Settlement,
    ) -> int:
        """The status of the answer, once all of it is sent."""
        headers = self._requests.format_headers(context)
        if not is_streaming(parsed.request):
            reply = await answer_whole(
                context, exchange, parsed.form, forwarded.events, settlement, headers
            )
            if not forwarded.stream.is_aborted:
                claim.keep(reply)
            return 200
        if exchange.is_blocked:
            await exchange.drain()
        exchange.start_events(headers)
        claim.spend()
        renderer = parsed.form.create_renderer(create_head(context))
        pump = EventPump(exchange, renderer, forwarded, lambda: self._count_first_text(context))
        return await pump.run(context, settlement)

    async def _refuse(
        self,
        context: RequestContext,
        exchange: HttpExchange,
        error: ServiceError,
    ) -> int:
        """The status of `error`, once it is sent."""
        return await answer_error(exchange, error, self._requests.format_headers(context))

    async def _admit(
        self, context: RequestContext, parsed: ParsedRequest, num_bytes: int
    ) -> Settlement:
        """What the request may use, held. Raises: what admission raises."""
        request = parsed.request
        window = self._forwarder.find_context_window(context, request.model)
        began_s = self._requests.measure_s(context)
        settlement = await self._books.open(context, request, num_bytes, window)
        took_s = self._requests.measure_s(context) - began_s
        self._telemetry.count_step(Step.ADMISSION, took_s)
        return settlement

    def _count_first_text(self, context: RequestContext) -> None:
        context.first_text_s = self._requests.measure_s(context)
        self._telemetry.count_first_text(context.model, context.first_text_s)

    def _count_gap(self, context: RequestContext, duration_s: float) -> None:
        """Counts how far apart a stream's tokens came, if it had several."""
        usage, first_s = context.usage, context.first_text_s
        if first_s is not None and usage is not None and usage.num_completion_tokens > 1:
            gap_s = (duration_s - first_s) / (usage.num_completion_tokens - 1)
            self._telemetry.count_token_gap(context.model, gap_s)


def _log_defect(context: RequestContext, error: Exception) -> None:
    """Logs where an unexpected error came from, without its message, which could quote a prompt."""
    log.error(
        "request_failed_unexpectedly",
        request_id=context.request_id,
        route=context.route,
        error=type(error).__name__,
        frames=traceback.format_tb(error.__traceback__),
    )
