"""The books: what a request may use, what it has used, and that both are settled exactly once.

Joins admission and metering around one request: reserve → confirm → settle. The record is in the
journal before the answer's last byte. Must not know HTTP or dialects.
Read next: `gateway.admission.admission`, `gateway.metering.journal`.
"""

from collections.abc import Callable

import structlog

from contracts.errors import LimitError
from contracts.ids import GatewayId, ModelName, RequestId, create_request_id
from contracts.inference import GenerateRequest, NodeRequest, Usage
from contracts.pricing import FREE, Charge, TokenCounts
from contracts.usage import Outcome, UsageRecord, to_token_counts
from gateway.admission.admission import NOTHING, Admission
from gateway.admission.rate_headers import format_rate_lines, format_refusal_lines
from gateway.admission.reservation import Reservation
from gateway.metering.journal import Journal
from gateway.metering.open_usage import OpenUsage
from gateway.request_context import RequestContext, Tally, create_tally
from gateway.sources import Sources

log = structlog.get_logger(__name__)


class Books:
    """Opens a settlement for every request."""

    def __init__(
        self,
        admission: Admission,
        journal: Journal,
        open_usage: OpenUsage,
        gateway_id: GatewayId,
        count_usage: Callable[[ModelName, Usage], None],
        sources: Sources,
    ) -> None:
        """`gateway_id` goes into every record; `count_usage` is told what nodes have computed."""
        self.journal = journal
        self.open_usage = open_usage
        self.gateway_id = gateway_id
        self.count_usage = count_usage
        self.sources = sources
        self._admission = admission
        self._limited: set[Reservation] = set()

    def list_limited(self) -> list[Reservation]:
        """What requests that are being served hold of limits."""
        return list(self._limited)

    async def open(
        self,
        context: RequestContext,
        request: NodeRequest,
        num_body_bytes: int,
        context_window: int,
    ) -> "Settlement":
        """A settlement that holds what the request may use; `close` must follow.

        `context` must have its principal and is told how its limit stands.

        Raises: `LimitError` leaves, `StoreUnavailable`; nothing is held then.
        """
        principal = context.principal
        assert principal is not None
        self.journal.require_room()
        place = context.usage_place = self.open_usage.take()
        context.note_moved = self.note_moved
        try:
            reservation, state = await self._admission.admit(
                principal,
                context.request_id,
                _find_period_id(context),
                request,
                num_body_bytes,
                context_window,
            )
        except BaseException as error:
            self.open_usage.end(place)
            if isinstance(error, LimitError):
                context.limit_lines = format_refusal_lines(error, self.sources.unix_s())
            raise
        if state is not None:
            context.limit_lines = format_rate_lines(state, context.started_unix_s)
        if reservation.need is not None:
            self._limited.add(reservation)
        is_streamed = isinstance(request, GenerateRequest) and request.stream
        return Settlement(self, context, reservation, place, is_streamed=is_streamed)

    def note_moved(self, context: RequestContext) -> None:
        """Another node has the request, or a part of it: should this process die, the record says
        so.
        """
        *earlier, last = context.list_places()
        self.open_usage.amend(context.usage_place, context.request_id, last, tuple(earlier))

    def forget(self, reservation: Reservation) -> None:
        """The request holds nothing any more."""
        self._limited.discard(reservation)


class Settlement:
    """One request's."""

    __slots__ = ("_books", "_context", "_is_settled", "_is_streamed", "_place", "_reservation")

    def __init__(
        self,
        books: Books,
        context: RequestContext,
        reservation: Reservation,
        place: int,
        *,
        is_streamed: bool,
    ) -> None:
        """Made by `Books.open`. `place` is that of the request in the file of open usage; an
        answer that is not streamed costs nothing if the process dies before its end.
        """
        self._books = books
        self._context = context
        self._reservation = reservation
        self._place = place
        self._is_streamed = is_streamed
        self._is_settled = False

    @property
    def is_settled(self) -> bool:
        """True once what was used is written down, or being so."""
        return self._is_settled

    def confirm(self, num_prompt: int, num_cached: int) -> Tally:
        """Where the attempt's tokens are counted, now that its node has counted the prompt."""
        if self._is_settled:
            return create_tally()
        self._reservation.confirm(num_prompt, num_cached)
        if self._context.is_repeatable:
            return create_tally()  # it is run again if the process dies
        record = self._create_record(Outcome.FAILED, TokenCounts(0, 0, 0), FREE, self._is_streamed)
        price = self._reservation.price if self._is_streamed else None
        return self._books.open_usage.begin(self._place, record, price)

    async def settle(self, outcome: Outcome, *, is_charged: bool = True) -> None:
        """Writes `context.usage` down and gives back what was held too much.

        The first call counts. None, or nothing at all used, leaves no record: the request was
        refused. `is_charged` False records what was computed in vain, at no cost.
        """
        if self._is_settled:
            return
        self._is_settled = True
        monotonic_s = self._books.sources.monotonic_s
        began_s = monotonic_s()
        try:
            await self._settle_once(outcome, is_charged)
        finally:
            self._books.open_usage.end(self._place)
            self._context.trace.note_settlement(began_s, monotonic_s())

    async def settle_cut(self, *, is_lost: bool, has_started: bool) -> None:
        """Settles an answer that has not come to its end, if it has not: what the client has got is
        charged. `is_lost`: it has left; `has_started`: something was sent.
        """
        outcome = Outcome.ABORTED if is_lost else Outcome.FAILED
        await self.settle(outcome, is_charged=is_lost or has_started)

    async def _settle_once(self, outcome: Outcome, is_charged: bool) -> None:
        """Nothing is waited for before the record is with the system."""
        self._books.forget(self._reservation)
        consumed, usage = self._context.usage_of_all, self._context.usage
        if consumed is not None:
            self._books.count_usage(self._context.model, consumed)
        if usage is None or not (usage.num_prompt_tokens or usage.num_completion_tokens):
            self._reservation.settle(NOTHING, FREE)
            await self._record_vain(outcome)
            return
        tokens = self._limit(to_token_counts(usage))
        charge = self._reservation.charge(tokens) if is_charged else FREE
        self._reservation.settle(tokens, charge)
        if self._context.is_repeatable and not is_charged:
            return
        record = self._create_record(outcome, tokens, charge, is_charged)
        await self._books.journal.append(record)

    async def _record_vain(self, outcome: Outcome) -> None:
        """Records a request of which nothing is left, if a node had taken it before it failed."""
        lost = self._context.usage_of_retried
        if lost is not None and lost.num_prompt_tokens and not self._context.is_repeatable:
            record = self._create_record(outcome, NOTHING, FREE, is_charged=False)
            await self._books.journal.append(record)

    def _limit(self, told: TokenCounts) -> TokenCounts:
        """What counts of `told`: no node makes anybody pay more than was asked of it."""
        tokens = self._reservation.limit(told)
        if tokens != told:
            context = self._context
            log.error("usage_impossible", request_id=context.request_id, node_id=context.node_id)
        return tokens

    def _create_record(
        self, outcome: Outcome, tokens: TokenCounts, charge: Charge, is_charged: bool
    ) -> UsageRecord:
        """What the ledger is to say of the request."""
        books, context, price = self._books, self._context, self._reservation.price
        principal = context.principal
        assert principal is not None
        node_id, region, earlier = context.node_id, context.region, ()
        if context.seen:
            *before, (node_id, region) = context.list_places()
            earlier = tuple(before)
        if context.has_unknown_runs:
            earlier = None
        return UsageRecord(
            context.request_id,
            principal.account_id,
            principal.api_token_id,
            context.model,
            node_id,
            region,
            books.gateway_id,
            int(books.sources.unix_s() * 1000),
            outcome,
            tokens,
            price.version if price is not None and is_charged else None,
            charge.cost_nano,
            charge.num_microneurons,
            earlier,
        )


def _find_period_id(context: RequestContext) -> RequestId:
    """An id of the day on whose budgets the request draws: an item of a batch may have been begun
    on an earlier one, of which nothing may be left.
    """
    if not context.is_repeatable:
        return context.request_id
    return create_request_id(int(context.started_unix_s * 1000), 0)
