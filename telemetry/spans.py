"""One span as data, the names of its attributes, and who takes spans.

Spans are made when their end is known, with ids and times of their own: nothing is held open, and
no library is on the way of a request. Must not know how spans leave the process.
Read next: `telemetry.otlp`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

SYSTEM: Final = "hearth"
"""`gen_ai.provider.name`."""
Value = str | int | float | bool | tuple[str, ...]


class SpanKind(StrEnum):
    """Which side of a call it is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Name(StrEnum):
    """Attributes: OpenTelemetry's where it has one, else ours."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    MODEL = "gen_ai.request.model"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    METHOD = "http.request.method"
    ROUTE = "http.route"
    STATUS = "http.response.status_code"
    ERROR = "error.type"
    REQUEST_ID = "hearth.request_id"
    NODE = "hearth.node.id"
    REGION = "hearth.region"
    ATTEMPT = "hearth.attempt.number"
    IS_CONTINUATION = "hearth.attempt.is_continuation"
    NUM_ATTEMPTS = "hearth.request.attempts"
    PREFILL_NODE = "hearth.prefill_node.id"


Attributes = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took its time. Units: nanoseconds since 1970."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    """None: the first of its trace."""
    start_ns: int
    end_ns: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict[str, Value])
    error: str = ""
    """A short code; empty: it ended as it should."""


class SpanSink(Protocol):
    """Takes spans, and returns at once whatever becomes of them."""

    @property
    def is_on(self) -> bool:
        """False when making spans would be in vain."""
        ...

    @property
    def num_sent(self) -> int:
        """Spans that a collector has taken."""
        ...

    @property
    def num_lost(self) -> int:
        """Spans that none has: it was away, refused them or was too slow."""
        ...

    def take(self, spans: Sequence[Span]) -> None:
        """Sends them some time. Neither waits nor raises."""
        ...

    async def close(self) -> None:
        """Sends what is left, for a bounded time."""
        ...


class NoSpans:
    """Where nothing is traced."""

    @property
    def is_on(self) -> bool:
        """Never."""
        return False

    @property
    def num_sent(self) -> int:
        """None."""
        return 0

    @property
    def num_lost(self) -> int:
        """None."""
        return 0

    def take(self, spans: Sequence[Span]) -> None:
        """Nobody is there."""

    async def close(self) -> None:
        """Nothing is left."""


NO_SPANS: Final = NoSpans()
