"""What every client language offers to the request path.

Owns the interface and the values that cross it; must not know HTTP or accounts.
Read next: `gateway.dialects.workers_ai`, `gateway.dialects.openai_chat`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from contracts.errors import ServiceError
from contracts.ids import ModelName, RequestId
from contracts.inference import FinishReason, GenerateRequest, Usage


class ParsedRequest(msgspec.Struct, frozen=True):
    """A client's body, understood."""

    generate: GenerateRequest
    includes_usage: bool = True
    """False when the client asked for a stream without usage."""


class ReplyHead(msgspec.Struct, frozen=True):
    """What a reply says of itself before any text is known."""

    request_id: RequestId
    model: ModelName
    created_unix_s: int
    includes_usage: bool


class EventRenderer(Protocol):
    """One stream's server-sent events, as bytes ready to send."""

    def begin(self) -> bytes:
        """What precedes the first text; may be empty."""
        ...

    def render_text(self, text: str) -> bytes:
        """One event with more text."""
        ...

    def finish(self, reason: FinishReason, usage: Usage) -> bytes:
        """The last events."""
        ...

    def fail(self, error: ServiceError) -> bytes:
        """The event of an error after the first byte; nothing follows, `[DONE]` included."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One client language as a set of pure functions."""

    name: str
    parse: Callable[[bytes | bytearray, str | None], ParsedRequest]
    """From a body and the model named in the path, if any. Raises: `RequestError` leaves."""
    render_reply: Callable[[ReplyHead, str, FinishReason, Usage], bytes]
    """The whole answer of a request that does not stream."""
    create_renderer: Callable[[ReplyHead], EventRenderer]
    render_error: Callable[[ServiceError], bytes]
    """The body of an error before the first byte."""
