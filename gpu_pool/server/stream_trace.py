"""What a node tells a collector of one request, where its gateway traces it.

The grant says which trace it is part of; nodes draw nothing themselves. Spans are made at the end,
from times that the meter has anyway: waking the model, the line, the prompt, the tokens. Owns names
of spans; must not know texts. Read next: `stream_meter` (the caller), `telemetry.spans`.
"""

from collections.abc import Callable
from typing import Final, Protocol

from contracts.grant import Grant
from contracts.inference import FinishReason, NodeRequest, Usage
from contracts.tracing import TraceContext, derive_span_id, find_operation, unpack_trace
from telemetry.spans import NO_SPANS, SYSTEM, Name, Span, SpanKind, SpanSink, Value

LOST: Final = "connection_lost"
_NS: Final = 1_000_000_000
_ENDS: Final = frozenset(FinishReason)


class StreamTrace(Protocol):
    """What the meter tells; times in seconds since the request was there in full."""

    def note_accepted(self, cold_s: float, waited_s: float) -> None:
        """It is being computed, having waited so long, `cold_s` of it for its model."""
        ...

    def note_first_token(self, at_s: float) -> None:
        """The first token has come."""
        ...

    def end(self, at_s: float, how: str, usage: Usage | None) -> None:
        """It is over: by a finish reason or an error's code."""
        ...


class NotTraced:
    """The trace of a request that is not."""

    __slots__ = ()

    def note_accepted(self, cold_s: float, waited_s: float) -> None:
        """Nobody hears it."""

    def note_first_token(self, at_s: float) -> None:
        """Nobody hears it."""

    def end(self, at_s: float, how: str, usage: Usage | None) -> None:
        """Nobody hears it."""


NOT_TRACED: Final = NotTraced()


class TracedStream:
    """The trace of one that is."""

    __slots__ = ("_cold_s", "_first_s", "_grant", "_is_over", "_node_id", "_operation", "_parent",
                 "_sink", "_started_ns", "_waited_s")  # fmt: skip

    def __init__(
        self,
        sink: SpanSink,
        parent: TraceContext,
        grant: Grant,
        operation: str,
        named: tuple[str, int],
    ) -> None:
        """`named`: this node's id, and when the request began, in ns since 1970."""
        self._sink = sink
        self._parent = parent
        self._grant = grant
        self._operation = operation
        self._node_id, self._started_ns = named
        self._cold_s = 0.0
        self._waited_s: float | None = None
        self._first_s: float | None = None
        self._is_over = False

    def note_accepted(self, cold_s: float, waited_s: float) -> None:
        """The prompt is being computed."""
        self._cold_s, self._waited_s = min(cold_s, waited_s), waited_s

    def note_first_token(self, at_s: float) -> None:
        """The prompt has been computed."""
        self._first_s = at_s

    def end(self, at_s: float, how: str, usage: Usage | None) -> None:
        """Sends everything. The first call counts."""
        if self._is_over:
            return
        self._is_over = True
        waited_s = at_s if self._waited_s is None else self._waited_s
        computed_s = at_s if self._first_s is None else self._first_s
        parts = [("queue", self._cold_s, waited_s)]
        if self._cold_s:
            parts.insert(0, ("wake", 0.0, self._cold_s))
        if self._waited_s is not None:
            parts.append(("prefill", waited_s, computed_s))
        if self._first_s is not None:
            parts.append(("decode", computed_s, at_s))
        whole = self._create_whole(at_s, how, usage)
        self._sink.take([whole, *(self._create_part(whole, *part) for part in parts)])

    def _create_whole(self, at_s: float, how: str, usage: Usage | None) -> Span:
        """The request as this node has seen it."""
        grant = self._grant
        attributes: dict[str, Value] = {
            Name.OPERATION: self._operation,
            Name.PROVIDER: SYSTEM,
            Name.MODEL: grant.model,
            Name.REQUEST_ID: grant.request_id,
            Name.ATTEMPT: grant.attempt,
            Name.NODE: self._node_id,
        }
        if usage is not None:
            attributes[Name.INPUT_TOKENS] = usage.num_prompt_tokens
            attributes[Name.CACHED_TOKENS] = usage.num_cached_tokens
            attributes[Name.OUTPUT_TOKENS] = usage.num_completion_tokens
        is_finished = how in _ENDS
        if is_finished:
            attributes[Name.FINISH_REASONS] = (str(how),)
        return Span(
            f"{self._operation} {grant.model}",
            self._parent.trace_id,
            derive_span_id(grant.request_id, f"node {grant.attempt}"),
            self._parent.span_id,
            self._started_ns,
            self._to_ns(at_s),
            SpanKind.SERVER,
            attributes,
            "" if is_finished else how,
        )

    def _create_part(self, whole: Span, name: str, began_s: float, ended_s: float) -> Span:
        """One stretch of it."""
        grant = self._grant
        return Span(
            name,
            whole.trace_id,
            derive_span_id(grant.request_id, f"node {grant.attempt} {name}"),
            whole.span_id,
            self._to_ns(began_s),
            self._to_ns(ended_s),
        )

    def _to_ns(self, at_s: float) -> int:
        return self._started_ns + int(at_s * _NS)


class NodeTracer:
    """Follows gateways in what they trace."""

    def __init__(self, sink: SpanSink, node_id: str, unix_ns: Callable[[], int]) -> None:
        """With a sink that is off it follows in nothing."""
        self.sink: Final = sink
        self._node_id = node_id
        self._unix_ns = unix_ns

    def begin(self, grant: Grant, request: NodeRequest) -> StreamTrace:
        """The trace of a request that is there in full."""
        if not grant.trace or not self.sink.is_on:
            return NOT_TRACED
        parent = unpack_trace(grant.trace)
        if parent is None:
            return NOT_TRACED
        operation = find_operation(request)
        named = self._node_id, self._unix_ns()
        return TracedStream(self.sink, parent, grant, operation, named)


NO_TRACER: Final = NodeTracer(NO_SPANS, "", lambda: 0)
