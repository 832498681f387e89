"""The way of a request whose sender is known: what it asks, and the answer to that.

parse → find the adapter, if one is named → admit → route → forward → translate → settle, which
comes before the last byte. Owns that order; each step lives in a module of its own. Must not know
sockets or which dialect it speaks.
Read next: `gateway.forwarding`, `gateway.answering`.
"""

from contracts.errors import ServiceError
from gateway.answer_memory import Claim, NoClaim
from gateway.answering import EventPump, answer_whole, create_head
from gateway.batches.desk import BatchDesk, BatchReply
from gateway.dialects.dialect import Body, ParsedRequest
from gateway.finetunes.resolver import AdapterResolver
from gateway.forwarding import Forwarded, Forwarder, is_streaming
from gateway.inference_call import InferenceCall
from gateway.middleware.exchange import HttpExchange
from gateway.request_context import OpenRequests, RequestContext
from gateway.settlement import Books, Settlement
from gateway.telemetry import Step, Telemetry


class AnswerPath:
    """Answers requests of every dialect, one now or several later."""

    def __init__(
        self,
        requests: OpenRequests,
        books: Books,
        forwarder: Forwarder,
        desk: BatchDesk,
        adapters: AdapterResolver,
        telemetry: Telemetry,
    ) -> None:
        """One object per step."""
        self._requests = requests
        self._books = books
        self._forwarder = forwarder
        self._desk = desk
        self._adapters = adapters
        self._telemetry = telemetry

    async def answer(
        self,
        call: InferenceCall,
        context: RequestContext,
        exchange: HttpExchange,
        body: Body,
        claim: Claim | NoClaim,
    ) -> int:
        """The status of the answer, once it is sent. Raises: `ServiceError` leaves, before it.

        `context` has its principal; `claim` is told what may be sent again.
        """
        principal = context.principal
        assert principal is not None
        if call.route.dialect.takes_batches and self._desk.may_ask(exchange.query, body):
            reply = await self._desk.answer(
                context, exchange.headers, exchange.query, call.model, body
            )
            if reply is not None:
                return await self._answer_batch(context, exchange, reply, claim)
        parsed = call.parse(body, principal, self._forwarder.find_model)
        if parsed.lora is not None:
            parsed = await self._adapters.resolve(principal.account_id, parsed)
        request = parsed.request
        context.trace.describe(call.route.path, request)
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
            if not settlement.is_settled:
                await settlement.settle_cut(
                    is_lost=exchange.is_lost, has_started=exchange.has_started
                )

    async def _answer_batch(
        self,
        context: RequestContext,
        exchange: HttpExchange,
        reply: BatchReply,
        claim: Claim | NoClaim,
    ) -> int:
        """The status of what the desk has said, once it is sent."""
        if reply.is_new:
            claim.keep(reply.body, None)  # nothing has been computed yet
        if exchange.is_blocked:
            await exchange.drain()
        exchange.reply(200, reply.body, self._requests.format_headers(context))
        return 200

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
            if type(claim) is Claim and not forwarded.stream.is_aborted:
                _keep_answer(claim, context, reply)
            return 200
        if exchange.is_blocked:
            await exchange.drain()
        claim.spend()
        renderer = parsed.form.create_renderer(create_head(context))
        pump = EventPump(exchange, renderer, forwarded, lambda: self._count_first_text(context))
        return await pump.run(context, settlement, headers)

    async def _admit(
        self, context: RequestContext, parsed: ParsedRequest, num_bytes: int
    ) -> Settlement:
        """What the request may use, held. Raises: what admission raises."""
        request = parsed.request
        window = self._forwarder.find_context_window(context, request.model)
        began_s, error = self._requests.measure_s(context), ""
        try:
            settlement = await self._books.open(context, request, num_bytes, window)
        except ServiceError as refusal:
            error = refusal.code
            raise
        finally:
            took_s = self._requests.measure_s(context) - began_s
            began_s += context.started_s
            context.trace.note_admission(began_s, began_s + took_s, error)
        self._telemetry.count_step(Step.ADMISSION, took_s)
        return settlement

    def _count_first_text(self, context: RequestContext) -> None:
        context.first_text_s = self._requests.measure_s(context)
        self._telemetry.count_first_text(context.model, context.first_text_s)


def _keep_answer(claim: Claim, context: RequestContext, reply: bytes) -> None:
    """Lets the answer be given again, unless nothing may remain of it."""
    assert context.principal is not None
    if context.principal.may_be_kept:
        others = tuple({place.region for place in context.seen} - {context.region})
        claim.keep(reply, context.region, others)
    else:
        claim.spend()
