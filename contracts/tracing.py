"""Which trace a request belongs to: ids, as clients send them and as grants carry them.

Owns the two forms, how span ids follow from a request's id, and the operation's name; must not know
spans, exporters or who samples. A client's ids are taken as ids and decide nothing.
Source: W3C Trace Context level 1, section 3.2; OpenTelemetry's semantic conventions for GenAI.
Read next: `telemetry.spans`.
"""

import hashlib
import re
from typing import Final

import msgspec

from contracts.encoding import EncodeRequest
from contracts.ids import RequestId
from contracts.inference import ChatPrompt, CountTokensRequest, NodeRequest

TRACEPARENT: Final = b"traceparent"
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


class TraceContext(msgspec.Struct, frozen=True):
    """A place in a trace: the trace, and the span that what follows is part of."""

    trace_id: int
    """128 bits, not zero."""
    span_id: int
    """64 bits, not zero."""


def read_traceparent(value: bytes) -> TraceContext | None:
    """What a client's header says; None for anything that is not of its form.

    Its flags are left aside: what is sampled is not for clients to say.
    """
    match = _TRACEPARENT.fullmatch(value)
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[4] is not None):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return TraceContext(trace_id, span_id) if trace_id and span_id else None


def pack_trace(context: TraceContext) -> bytes:
    """24 bytes, as a grant carries them."""
    trace_id = context.trace_id.to_bytes(_TRACE_BYTES, "big")
    return trace_id + context.span_id.to_bytes(_SPAN_BYTES, "big")


def unpack_trace(data: bytes) -> TraceContext | None:
    """The context that a grant carries; None for a request that is not traced."""
    if len(data) != _TRACE_BYTES + _SPAN_BYTES:
        return None
    trace_id = int.from_bytes(data[:_TRACE_BYTES], "big")
    span_id = int.from_bytes(data[_TRACE_BYTES:], "big")
    return TraceContext(trace_id, span_id) if trace_id and span_id else None


def derive_span_id(request_id: RequestId, what: str) -> int:
    """The id of one span of a request: whoever knows both names it, so that nobody carries it."""
    digest = hashlib.blake2b(f"{request_id}\0{what}".encode(), digest_size=_SPAN_BYTES).digest()
    return int.from_bytes(digest, "big") or 1


def find_operation(request: NodeRequest) -> str:
    """`gen_ai.operation.name`."""
    if isinstance(request, EncodeRequest):
        return "embeddings"
    if isinstance(request, CountTokensRequest):
        return "count_tokens"
    return "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"
