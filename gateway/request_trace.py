"""What is told of one request to a collector of traces: its way through the gateway, as spans.

Whether a request is traced is drawn here and nowhere else. Spans are noted when they are over, by
whoever did the work, and leave together with the request; those that come later leave by
themselves. Owns names and ids of spans; must not know what carries them.
Read next: `telemetry.spans`, `contracts.tracing`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from contracts.ids import ModelName, NodeId, RegionId, RequestId
from contracts.inference import NodeRequest, Usage
from contracts.tracing import (
    TRACEPARENT,
    TraceContext,
    derive_span_id,
    find_operation,
    pack_trace,
    read_traceparent,
)
from telemetry.spans import SYSTEM, Name, Span, SpanKind, SpanSink, Value

_CHANCE_BITS: Final = 53
_TRACE_BITS: Final = 128
_NS: Final = 1_000_000_000
Choice = tuple[NodeId, RegionId | None] | None
"""A node and where it is; None where none was chosen."""


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """What a request came to."""

    status: int
    model: ModelName
    usage: Usage | None
    num_attempts: int
    choice: Choice
    first_text_s: float | None


class RequestTrace:
    """What the steps of a request tell; this one is of a request that is not traced, and deaf.

    Times are of the monotonic clock, in seconds; `error` is a short code, or empty.
    """

    __slots__ = ()

    @property
    def is_on(self) -> bool:
        """True where somebody hears it."""
        return False

    def describe(self, route: str, request: NodeRequest | None = None) -> None:
        """The route's template and, once it is known, what is asked."""

    def carry(self, attempt: int) -> bytes:
        """What the grant of an attempt carries; empty where nothing is traced."""
        return b""

    def note_admission(self, began_s: float, ended_s: float, error: str) -> None:
        """Limits and budgets have been asked."""

    def note_routing(self, began_s: float, ended_s: float, choice: Choice, error: str = "") -> None:
        """A node was chosen, or none could be."""

    def note_queue(self, began_s: float, ended_s: float, choice: Choice, error: str = "") -> None:
        """The request has waited for a node with room."""

    def note_attempt(
        self,
        numbered: tuple[int, bool],
        began_s: float,
        ended_s: float,
        choice: Choice,
        error: str,
    ) -> None:
        """An attempt is over: its number, and whether a part of the answer had come before."""

    def note_prefill(
        self, number: int, began_s: float, ended_s: float, node_id: NodeId, error: str
    ) -> None:
        """One node has computed a prompt for another, or has not."""

    def note_settlement(self, began_s: float, ended_s: float) -> None:
        """What was used is written down."""

    def end(self, ended_s: float, end: RequestEnd) -> None:
        """The request is over."""


NOT_TRACED: Final = RequestTrace()


class TracedRequest(RequestTrace):
    """The trace of one that is."""

    __slots__ = (
        "_clock_offset_s",
        "_context",
        "_is_over",
        "_num_parts",
        "_operation",
        "_parent_id",
        "_request_id",
        "_route",
        "_sink",
        "_spans",
        "_started_s",
    )

    def __init__(
        self,
        sink: SpanSink,
        request_id: RequestId,
        parent: TraceContext | None,
        trace_id: int,
        started: tuple[float, float],
    ) -> None:
        """`parent` is the client's own span, if it named one; `started` is the moment by the
        monotonic clock and since 1970.
        """
        self._sink = sink
        self._request_id = request_id
        self._parent_id = None if parent is None else parent.span_id
        self._context = TraceContext(
            trace_id if parent is None else parent.trace_id, derive_span_id(request_id, "request")
        )
        self._started_s, unix_s = started
        self._clock_offset_s = unix_s - self._started_s
        self._route = ""
        self._operation = ""
        self._spans: list[Span] = []
        self._num_parts = 0
        self._is_over = False

    @property
    def is_on(self) -> bool:
        """It is."""
        return True

    def describe(self, route: str, request: NodeRequest | None = None) -> None:
        """What the span of the whole request is called."""
        self._route = route
        if request is not None:
            self._operation = find_operation(request)

    def carry(self, attempt: int) -> bytes:
        """The trace, and the span of the attempt."""
        return pack_trace(TraceContext(self._context.trace_id, self._name_attempt(attempt)))

    def note_admission(self, began_s: float, ended_s: float, error: str) -> None:
        """Keeps a span."""
        self._note("admission", began_s, ended_s, {}, error)

    def note_routing(self, began_s: float, ended_s: float, choice: Choice, error: str = "") -> None:
        """Keeps a span."""
        self._note("routing", began_s, ended_s, _describe_choice(choice), error)

    def note_queue(self, began_s: float, ended_s: float, choice: Choice, error: str = "") -> None:
        """Keeps a span."""
        self._note("fair_queue", began_s, ended_s, _describe_choice(choice), error)

    def note_attempt(
        self,
        numbered: tuple[int, bool],
        began_s: float,
        ended_s: float,
        choice: Choice,
        error: str,
    ) -> None:
        """Keeps a span."""
        number, is_continuation = numbered
        details = _describe_choice(choice)
        details |= {Name.ATTEMPT: number, Name.IS_CONTINUATION: is_continuation}
        self._note("attempt", began_s, ended_s, details, error, number)

    def note_prefill(
        self, number: int, began_s: float, ended_s: float, node_id: NodeId, error: str
    ) -> None:
        """Keeps a span."""
        details: dict[str, Value] = {Name.NODE: node_id, Name.ATTEMPT: number}
        self._note("prefill_attempt", began_s, ended_s, details, error, number)

    def note_settlement(self, began_s: float, ended_s: float) -> None:
        """Keeps a span."""
        self._note("settlement", began_s, ended_s, {}, "")

    def end(self, ended_s: float, end: RequestEnd) -> None:
        """Sends everything."""
        named = self._operation and end.model
        whole = Span(
            f"{self._operation} {end.model}" if named else f"POST {self._route}",
            self._context.trace_id,
            self._context.span_id,
            self._parent_id,
            self._to_ns(self._started_s),
            self._to_ns(ended_s),
            SpanKind.SERVER,
            self._describe_end(end),
            str(end.status) if end.status >= 400 else "",
        )
        self._is_over = True
        spans, self._spans = self._spans, []
        self._sink.take([whole, *spans])

    def _describe_end(self, end: RequestEnd) -> dict[str, Value]:
        """The attributes of the whole request; what is not known is left out."""
        usage = end.usage
        known: dict[str, Value | None] = {
            Name.OPERATION: self._operation or None,
            Name.PROVIDER: SYSTEM,
            Name.MODEL: end.model or None,
            Name.INPUT_TOKENS: usage and usage.num_prompt_tokens,
            Name.CACHED_TOKENS: usage and usage.num_cached_tokens,
            Name.OUTPUT_TOKENS: usage and usage.num_completion_tokens,
            Name.FIRST_CHUNK_S: end.first_text_s,
            Name.METHOD: "POST",
            Name.ROUTE: self._route,
            Name.STATUS: end.status,
            Name.REQUEST_ID: self._request_id,
            Name.NUM_ATTEMPTS: end.num_attempts,
            Name.NODE: end.choice[0] if end.choice else None,
            Name.REGION: end.choice[1] if end.choice else None,
        }
        return {name: value for name, value in known.items() if value is not None}

    def _note(
        self,
        name: str,
        began_s: float,
        ended_s: float,
        details: dict[str, Value],
        error: str,
        attempt: int | None = None,
    ) -> None:
        """Keeps a span until the request is over; one that comes later leaves at once."""
        self._num_parts += 1
        what = f"{name} {self._num_parts}"
        span = Span(
            name,
            self._context.trace_id,
            derive_span_id(self._request_id, what)
            if attempt is None
            else self._name_attempt(attempt),
            self._context.span_id,
            self._to_ns(began_s),
            self._to_ns(ended_s),
            SpanKind.INTERNAL if attempt is None else SpanKind.CLIENT,
            details,
            error,
        )
        if self._is_over:
            self._sink.take([span])
        else:
            self._spans.append(span)

    def _name_attempt(self, number: int) -> int:
        """The id of the span of an attempt."""
        return derive_span_id(self._request_id, f"attempt {number}")

    def _to_ns(self, monotonic_s: float) -> int:
        return int((monotonic_s + self._clock_offset_s) * _NS)


class Tracer:
    """Draws which requests are traced."""

    def __init__(
        self, sink: SpanSink, sample_share: float, random_bits: Callable[[int], int]
    ) -> None:
        """With a sink that is off none is."""
        self.sink: Final = sink
        self._threshold = int(sample_share * 2**_CHANCE_BITS) if sink.is_on else 0
        self._random_bits = random_bits

    def begin(
        self,
        request_id: RequestId,
        started: tuple[float, float],
        headers: Iterable[tuple[bytes, bytes]],
    ) -> RequestTrace:
        """The trace of a request that begins; `started` as `TracedRequest` takes it."""
        if not self._threshold or self._random_bits(_CHANCE_BITS) >= self._threshold:
            return NOT_TRACED
        found = [value for name, value in headers if name == TRACEPARENT]
        parent = read_traceparent(found[0]) if len(found) == 1 else None
        trace_id = self._random_bits(_TRACE_BITS) or 1
        return TracedRequest(self.sink, request_id, parent, trace_id, started)


def _describe_choice(choice: Choice) -> dict[str, Value]:
    """The attributes of a node that was chosen."""
    if choice is None:
        return {}
    node_id, region = choice
    return {Name.NODE: node_id} if region is None else {Name.NODE: node_id, Name.REGION: region}
