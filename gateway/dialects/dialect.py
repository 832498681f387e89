"""What every client language offers to the request path.

A dialect turns a body into a request and the form in which its sender wants the answer: the same
route may answer in several shapes. Owns the interface and the values that cross it; must not know
HTTP or accounts. Read next: `gateway.dialects.answer`, `gateway.dialects.openai_chat`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from contracts.errors import ServiceError
from contracts.fleet import ModelCard
from contracts.ids import ModelName, RequestId
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    NodeRequest,
    PromptScored,
    ReasoningDelta,
    ToolCallDelta,
)
from gateway.dialects.answer import Answer

Body = bytes | bytearray
FindModel = Callable[[ModelName], ModelCard | None]
"""What is known of a model, None when nobody offers it: some shapes depend on the model."""
MiddleEvent = Delta | ReasoningDelta | ToolCallDelta | ChoiceFinished | PromptScored
"""What comes between the first event of a stream and its last."""


class ReplyHead(msgspec.Struct, frozen=True):
    """What a reply says of itself before any text is known."""

    request_id: RequestId
    model: ModelName
    created_unix_s: int


class EventRenderer(Protocol):
    """One stream's server-sent events, as bytes ready to send."""

    def begin(self, accepted: Accepted) -> bytes:
        """What precedes the first text; may be empty."""
        ...

    def render_text(self, text: str) -> bytes:
        """More text of the first choice and nothing else: the case that must be cheap."""
        ...

    def render_event(self, event: MiddleEvent) -> bytes:
        """Any event, plain text included; may be empty."""
        ...

    def finish(self, last: Finished) -> bytes:
        """The last events."""
        ...

    def fail(self, error: ServiceError) -> bytes:
        """The event of an error after the first byte; nothing follows, `[DONE]` included."""
        ...


class ReplyForm(Protocol):
    """How one request wants its answer."""

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """The whole answer of a request that does not stream. Raises: `RequestError` leaves."""
        ...

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """The renderer of one stream."""
        ...


class ParsedRequest(msgspec.Struct, frozen=True):
    """A client's body, understood."""

    request: NodeRequest
    form: ReplyForm
    lora: str | None = None
    """The adapter to compute it with, as the client calls it: `gateway.finetunes.resolver` finds
    it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One client language. Errors look alike in all of them; see `gateway.errors`."""

    name: str
    parse: Callable[[Body, str | None, FindModel], ParsedRequest]
    """From a body and the model named in the path, if any. Raises: `RequestError` leaves."""
    body: Any
    """What a body may hold, for the document of the API, as are the next two."""
    replies: tuple[Any, ...]
    """What whole answers look like, one of these."""
    other_bodies: tuple[Any, ...] = ()
    """What it may hold instead, for models of other kinds."""
    takes_batches: bool = False
    """True when bodies may hold several requests, to be answered later."""
    is_streamed: bool = True
    """False when there are no streams of such answers."""
