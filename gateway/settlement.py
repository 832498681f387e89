"""The books: what a request may use, what it has used, and that both are settled exactly once.

Joins admission and metering around one request: reserve → confirm → settle. The record is in the
journal before the answer's last byte. Must not know HTTP or dialects.
Read next: `gateway.admission.admission`, `gateway.metering.journal`.
"""

from contracts.errors import LimitError
from contracts.ids import GatewayId
from contracts.inference import NodeRequest, Usage
from contracts.pricing import FREE, TokenCounts
from contracts.usage import Outcome, UsageRecord
from gateway.admission.admission import NOTHING, Admission
from gateway.admission.rate_headers import format_rate_lines, format_refusal_lines
from gateway.admission.reservation import Reservation
from gateway.metering.journal import Journal
from gateway.request_context import RequestContext
from gateway.sources import Sources
from gateway.telemetry import Telemetry


class Books:
    """Opens a settlement for every request."""

    def __init__(
        self,
        admission: Admission,
        journal: Journal,
        gateway_id: GatewayId,
        telemetry: Telemetry,
        sources: Sources,
    ) -> None:
        """`gateway_id` goes into every record."""
        self.journal = journal
        self.gateway_id = gateway_id
        self.telemetry = telemetry
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
        try:
            reservation, state = await self._admission.admit(
                principal, context.request_id, request, num_body_bytes, context_window
            )
        except LimitError as error:
            context.limit_lines = format_refusal_lines(error, self.sources.unix_s())
            raise
        if state is not None:
            context.limit_lines = format_rate_lines(state, context.started_unix_s)
        if reservation.need is not None:
            self._limited.add(reservation)
        return Settlement(self, context, reservation)

    def forget(self, reservation: Reservation) -> None:
        """The request holds nothing any more."""
        self._limited.discard(reservation)


class Settlement:
    """One request's."""

    __slots__ = ("_books", "_context", "_is_settled", "_reservation")

    def __init__(self, books: Books, context: RequestContext, reservation: Reservation) -> None:
        """Made by `Books.open`."""
        self._books = books
        self._context = context
        self._reservation = reservation
        self._is_settled = False

    def confirm(self, num_prompt: int, num_cached: int) -> None:
        """The node has counted the prompt."""
        self._reservation.confirm(num_prompt, num_cached)

    async def settle(self, outcome: Outcome, *, is_charged: bool = True) -> None:
        """Writes `context.usage` down and gives back what was held too much.

        The first call counts. None, or nothing at all used, leaves no record: the request was
        refused. `is_charged` False records what was computed in vain, at no cost.
        """
        if self._is_settled:
            return
        self._is_settled = True
        self._books.forget(self._reservation)
        consumed, usage = self._context.usage_of_all, self._context.usage
        if consumed is not None:
            self._books.telemetry.count_usage(self._context.model, consumed)
        if usage is None or not (usage.num_prompt_tokens or usage.num_completion_tokens):
            self._reservation.settle(NOTHING, FREE)
            return
        tokens = to_token_counts(usage)
        charge = self._reservation.charge(tokens) if is_charged else FREE
        self._reservation.settle(tokens, charge)
        books, context, price = self._books, self._context, self._reservation.price
        principal = context.principal
        assert principal is not None
        await books.journal.append(
            UsageRecord(
                context.request_id,
                principal.account_id,
                principal.api_token_id,
                context.model,
                context.node_id,
                context.region,
                books.gateway_id,
                int(books.sources.unix_s() * 1000),
                outcome,
                tokens,
                price.version if price is not None and is_charged else None,
                charge.cost_nano,
                charge.num_microneurons,
            )
        )


def to_token_counts(usage: Usage) -> TokenCounts:
    """Every token once, by what it costs."""
    return TokenCounts(
        usage.num_prompt_tokens - usage.num_cached_tokens,
        usage.num_cached_tokens,
        usage.num_completion_tokens - usage.num_reasoning_tokens,
        usage.num_reasoning_tokens,
    )
