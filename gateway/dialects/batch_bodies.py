"""Bodies of asynchronous batches on the native route: handing in, asking about, and the answers.

Owns their schemas, and that a batch is asked by `queueRequest=true` or by its `request_id`. Source:
Workers AI's documentation (asynchronous batch). Read next: `gateway.batches.desk`.
"""

from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

import msgspec

from contracts.batches import BatchState
from contracts.errors import InvalidRequest
from contracts.ids import ModelName, RequestId
from gateway.dialects.dialect import Body
from gateway.dialects.fields import to_model_name
from gateway.dialects.replies import SuccessEnvelope, UsageFields
from gateway.dialects.strict_json import decode_json

QUEUE_PARAMETER: Final = "queueRequest"
MAX_REFERENCE_CHARS: Final = 512
MAX_POLL_BYTES: Final = 4096
"""A longer body without `queueRequest=true` is not searched for a `request_id`."""
_POLL_MARK: Final = b'"request_id"'
_TRUE: Final = frozenset({"true", "1"})

Reference = Annotated[str, msgspec.Meta(max_length=MAX_REFERENCE_CHARS)]
_REQUEST_ID_PATTERN: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
BatchId = Annotated[str, msgspec.Meta(pattern=_REQUEST_ID_PATTERN)]


class BatchSubmission(msgspec.Struct, frozen=True):
    """A batch: each request is a body of this route, and may carry an `external_reference`."""

    requests: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1)]


class BatchPoll(msgspec.Struct, frozen=True):
    """A question about an earlier batch."""

    request_id: BatchId


class BatchStatus(msgspec.Struct, frozen=True):
    """A batch that is not done."""

    status: BatchState
    request_id: RequestId
    model: ModelName


class ItemFailure(msgspec.Struct, frozen=True):
    """Why a request has no result."""

    code: int
    message: str


class ItemResult(msgspec.Struct, frozen=True):
    """The answer to one request of a batch."""

    id: int
    """Which request, counted from 0."""
    success: bool
    result: Any
    """What the route answers with; null where there is an error."""
    external_reference: str | None
    error: ItemFailure | None = None


class BatchAnswers(msgspec.Struct, frozen=True):
    """A batch that is done: an answer for each request, in order, and the usage of all."""

    responses: tuple[ItemResult, ...]
    usage: UsageFields


BATCH_BODIES: Final = (BatchSubmission, BatchPoll)
BATCH_REPLIES: Final = (SuccessEnvelope[BatchStatus], SuccessEnvelope[BatchAnswers])


class AskedItem(msgspec.Struct, frozen=True):
    """One request as it was handed in."""

    body: bytes
    reference: str | None


class _Body(msgspec.Struct, frozen=True):
    """Either of the bodies; what else is in it is ignored."""

    requests: tuple[msgspec.Raw, ...] | None = None
    request_id: BatchId | None = None


class _NamedBody(msgspec.Struct, frozen=True):
    """The same where the path names no model."""

    model: str
    input: msgspec.Raw


class _Referred(msgspec.Struct, frozen=True):
    external_reference: Reference | None = None


class BatchAsked(msgspec.Struct, frozen=True):
    """What a body asks of batches: one of the two is set."""

    model: ModelName
    items: tuple[AskedItem, ...] = ()
    batch_id: RequestId | None = None


_body_decoder: Final = msgspec.json.Decoder(_Body)
_named_decoder: Final = msgspec.json.Decoder(_NamedBody)
_referred_decoder: Final = msgspec.json.Decoder(_Referred)


def may_ask_batches(query: bytes, body: Body) -> bool:
    """True for what has to be looked at more closely; costs next to nothing."""
    if query and QUEUE_PARAMETER.encode() in query and is_queued(query):
        return True
    return len(body) <= MAX_POLL_BYTES and _POLL_MARK in body


def is_queued(query: bytes) -> bool:
    """True when the query says `queueRequest=true`."""
    fields = dict(parse_qsl(query.decode("latin-1")))
    return fields.get(QUEUE_PARAMETER, "").lower() in _TRUE


def read_batch_body(
    body: Body, model: str | None, query: bytes, max_items: int
) -> BatchAsked | None:
    """What `body` asks of batches; None when it asks a model after all. `requests` go first.

    Raises: `InvalidRequest`, `InvalidModelName`.
    """
    if model is None:
        named = decode_json(_named_decoder, body)
        model, body = named.model, bytes(named.input)
    fields = decode_json(_body_decoder, body)
    name = to_model_name(model)
    if not is_queued(query):
        is_poll = fields.request_id is not None and fields.requests is None
        return BatchAsked(name, batch_id=RequestId(str(fields.request_id))) if is_poll else None
    if fields.requests:
        if len(fields.requests) > max_items:
            raise InvalidRequest(f"A batch has at most {max_items} requests.", param="requests")
        return BatchAsked(name, tuple(map(_to_item, range(len(fields.requests)), fields.requests)))
    if fields.request_id is None:
        raise InvalidRequest(
            f"With `{QUEUE_PARAMETER}=true` the body holds `requests`, an array of at least one, or"
            " the `request_id` of an earlier batch.",
            param="requests",
        )
    return BatchAsked(name, batch_id=RequestId(fields.request_id))


def _to_item(index: int, raw: msgspec.Raw) -> AskedItem:
    """One request, whose content is looked at when it runs. Raises: `InvalidRequest`."""
    try:
        return AskedItem(bytes(raw), _referred_decoder.decode(raw).external_reference)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            f"Bad input at `requests[{index}]`: {error}.", param=f"requests[{index}]"
        ) from None
