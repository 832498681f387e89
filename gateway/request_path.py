"""The life of a request inside the gateway, from its headers to its last byte.

authenticate → read → record, if wanted → once per key → answer. Owns that order and what the client
gets when a step refuses. Must not know sockets or which dialect it speaks.
Read next: `gateway.answer_path`.
"""

import logging
import traceback
from typing import Final

import structlog

from contracts.errors import InvariantBroken, ServiceError
from gateway.answer_memory import AnswerMemory, KeptAnswer, NoClaim, find_key
from gateway.answer_path import AnswerPath
from gateway.answering import answer_error
from gateway.auth.authenticator import Authenticator
from gateway.forwarding import Forwarder
from gateway.inference_call import InferenceCall
from gateway.middleware.exchange import HttpExchange
from gateway.replays import describe_narrowing
from gateway.request_context import OpenRequests, Recorder, RequestContext
from gateway.telemetry import Telemetry

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
        forwarder: Forwarder,
        recorder: Recorder,
        memory: AnswerMemory,
        path: AnswerPath,
        telemetry: Telemetry,
    ) -> None:
        """One object per step."""
        self._requests = requests
        self._authenticator = authenticator
        self._forwarder = forwarder
        self._recorder = recorder
        self._memory = memory
        self._path = path
        self._telemetry = telemetry
        self._log = log.bind()  # once: the lazy logger would do it for every request
        self._logs_each = self._log.is_enabled_for(logging.DEBUG)

    async def serve(
        self, call: InferenceCall, exchange: HttpExchange, refusal: ServiceError | None = None
    ) -> None:
        """Answers one request; every way to fail ends in an answer, too.

        `refusal` is set when the address or the method has ruled the request out already.
        """
        context = self._requests.begin(call.route.name)
        self._requests.trace(context, exchange.headers, call.route.path)
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
            duration_s = self._requests.end(context, status)
            self._recorder.end(context, status)
            self._telemetry.count_request(context.route, status, context.model, duration_s)
            self._count_gap(context, duration_s)
            if self._logs_each:
                self._log_end(context, status, duration_s)

    async def _answer(
        self, call: InferenceCall, context: RequestContext, exchange: HttpExchange
    ) -> int:
        """The status of the answer, once it is sent. Raises: `ServiceError` leaves, before it."""
        self._requests.require_room()
        principal = await self._authenticator.authenticate(
            exchange.headers, call.account_id, call.route.access, exchange.peer
        )
        context.principal = principal
        self._requests.require_share(context)
        self._forwarder.entry.require(principal)
        exchange.own_body(principal.account_id)
        body = exchange.take_body() or await exchange.read_body()
        if body is None:
            return CLIENT_GONE
        self._recorder.begin(context, exchange, body)
        key = find_key(exchange.headers)
        if key is None:
            return await self._path.answer(call, context, exchange, body, _NO_CLAIM)
        named = call.route.name.encode(), (call.model or "").encode()
        narrowing = describe_narrowing(exchange.headers)
        # Who may not use every model gets its own answers alone: another's could be one of those.
        scope = b"" if principal.models is None else principal.api_token_id.encode()
        claim = await self._memory.claim(
            principal.account_id, key, *named, narrowing, body, scope=scope
        )
        if isinstance(claim, KeptAnswer):
            return await self._give_again(context, exchange, claim)
        try:
            return await self._path.answer(call, context, exchange, body, claim)
        finally:
            claim.forget()  # unless it was settled before

    async def _give_again(
        self, context: RequestContext, exchange: HttpExchange, answer: KeptAnswer
    ) -> int:
        """The status of an answer of before, once it is sent again. Raises: `ServiceError` leaves,
        where the account's rules and the request's do not allow by now where it was computed.
        """
        lines = _REPLAYED + self._requests.format_headers(context)
        if answer.region is not None:
            regions = (answer.region, *answer.others)
            await self._forwarder.replays.require(context, regions, exchange.headers)
            lines += b"x-hearth-region: " + answer.region.encode() + b"\r\n"
        exchange.reply(200, answer.body, lines)
        return 200

    async def _refuse(
        self,
        context: RequestContext,
        exchange: HttpExchange,
        error: ServiceError,
    ) -> int:
        """The status of `error`, once it is sent."""
        return await answer_error(exchange, error, self._requests.format_headers(context))

    def _log_end(self, context: RequestContext, status: int, duration_s: float) -> None:
        """A line on the request, for whoever looks for something."""
        self._log.debug(
            "request_served",
            request_id=context.request_id,
            route=context.route,
            status=status,
            model=context.model,
            node_id=context.node_id,
            attempts=context.num_attempts,
            duration_s=round(duration_s, 4),
        )

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
