"""The one table from error leaves to HTTP, and the body that carries them to every client.

Owns status, integer code, type and name, and retry headers. Codes below 7400 are those of
the Workers AI contract; 74xx and 75xx are ours, chosen after the HTTP status they come with.
Must not know sockets. Read next: `contracts.errors`, whose leaves a test compares with the table.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from contracts.errors import (
    AccountSuspended,
    AdapterIncomplete,
    AdapterUnsupported,
    AddressNotAllowed,
    CodingUnsupported,
    ConcurrencyLimited,
    Conflict,
    ConstraintUnmet,
    ContextTooLong,
    DeadlineExceeded,
    Forbidden,
    HeadersTooLarge,
    InvalidIdentifier,
    InvalidModelName,
    InvalidRequest,
    InvariantBroken,
    MethodNotAllowed,
    ModelCold,
    ModelFailed,
    ModelNotAllowed,
    NodeUnreachable,
    NoEndpoint,
    NotFound,
    OutOfBlocks,
    PayloadTooLarge,
    PoolSaturated,
    PriceUnknown,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    ResidencyViolation,
    ServiceError,
    ServiceStopping,
    StoreUnavailable,
    StreamBroken,
    TransferFailed,
    Unauthenticated,
    Unimplemented,
    UnknownModel,
    UnsupportedFeature,
    VersionUnsupported,
)

Headers = list[tuple[bytes, bytes]]

INVALID: Final = "invalid_request_error"
LIMIT: Final = "rate_limit_error"
CAPACITY: Final = "overloaded_error"
SERVER: Final = "server_error"


class ErrorRow(NamedTuple):
    """How one leaf looks over HTTP."""

    status: int
    code: int
    """The integer of the v4 envelope."""
    type: str
    """The kind of error, as OpenAI and Anthropic call it."""
    name: str
    """The code that OpenAI's clients read."""
    should_retry: bool


ERROR_TABLE: Final[dict[type[ServiceError], ErrorRow]] = {
    InvalidRequest: ErrorRow(400, 5006, INVALID, "invalid_request", False),
    AdapterUnsupported: ErrorRow(405, 5005, INVALID, "lora_unsupported", False),
    AdapterIncomplete: ErrorRow(400, 3039, INVALID, "finetune_incomplete", False),
    ConstraintUnmet: ErrorRow(400, 7402, INVALID, "json_mode_unmet", False),
    InvalidModelName: ErrorRow(404, 3042, INVALID, "invalid_model_name", False),
    UnknownModel: ErrorRow(400, 5007, INVALID, "model_not_found", False),
    ContextTooLong: ErrorRow(400, 7400, INVALID, "context_length_exceeded", False),
    UnsupportedFeature: ErrorRow(400, 7401, INVALID, "unsupported_feature", False),
    PayloadTooLarge: ErrorRow(413, 3006, INVALID, "payload_too_large", False),
    CodingUnsupported: ErrorRow(415, 7415, INVALID, "coding_unsupported", False),
    HeadersTooLarge: ErrorRow(431, 7431, INVALID, "headers_too_large", False),
    RequestTimeout: ErrorRow(408, 3007, INVALID, "request_timeout", True),
    NotFound: ErrorRow(404, 7000, INVALID, "not_found", False),
    InvalidIdentifier: ErrorRow(404, 7003, INVALID, "invalid_identifier", False),
    MethodNotAllowed: ErrorRow(405, 7001, INVALID, "method_not_allowed", False),
    Unimplemented: ErrorRow(501, 7501, INVALID, "unimplemented", False),
    VersionUnsupported: ErrorRow(505, 7508, INVALID, "version_unsupported", False),
    Conflict: ErrorRow(409, 7409, INVALID, "conflict", False),
    Unauthenticated: ErrorRow(401, 10000, "authentication_error", "invalid_api_key", False),
    Forbidden: ErrorRow(403, 10000, "permission_error", "forbidden", False),
    AddressNotAllowed: ErrorRow(403, 9109, "permission_error", "address_not_allowed", False),
    ModelNotAllowed: ErrorRow(403, 5018, "permission_error", "model_not_allowed", False),
    AccountSuspended: ErrorRow(403, 3023, "permission_error", "account_suspended", False),
    ResidencyViolation: ErrorRow(403, 7403, "permission_error", "residency_violation", False),
    RateLimited: ErrorRow(429, 7429, LIMIT, "rate_limit_exceeded", True),
    ConcurrencyLimited: ErrorRow(429, 7430, LIMIT, "concurrency_limited", True),
    QuotaExceeded: ErrorRow(429, 3036, LIMIT, "insufficient_quota", False),
    PriceUnknown: ErrorRow(403, 7440, "permission_error", "price_unknown", False),
    NoEndpoint: ErrorRow(429, 3040, CAPACITY, "no_capacity", True),
    ModelCold: ErrorRow(429, 3040, CAPACITY, "model_cold", True),
    PoolSaturated: ErrorRow(429, 3040, CAPACITY, "no_capacity", True),
    OutOfBlocks: ErrorRow(429, 3040, CAPACITY, "no_capacity", True),
    NodeUnreachable: ErrorRow(503, 7503, SERVER, "node_unreachable", True),
    StreamBroken: ErrorRow(502, 7502, SERVER, "stream_broken", True),
    DeadlineExceeded: ErrorRow(408, 3007, SERVER, "deadline_exceeded", False),
    TransferFailed: ErrorRow(502, 7504, SERVER, "transfer_failed", True),
    ModelFailed: ErrorRow(503, 7506, SERVER, "model_failed", False),
    InvariantBroken: ErrorRow(500, 7500, SERVER, "internal_error", False),
    StoreUnavailable: ErrorRow(503, 7505, SERVER, "store_unavailable", True),
    ServiceStopping: ErrorRow(503, 7507, SERVER, "service_stopping", True),
}

_RETRY_AFTER_CAPACITY_S: Final = 1
_MAX_RETRY_AFTER_S: Final = 60
"""Clients honour no longer pause than this and fall back to their own."""


class Notice(msgspec.Struct, frozen=True):
    """An entry of `errors` or `messages` in the v4 envelope."""

    code: int
    message: str


class ErrorFields(msgspec.Struct, frozen=True):
    """The `error` object of OpenAI's API, and of Anthropic's, which has `message` and `type`."""

    message: str
    type: str
    code: str
    param: str | None


class FailureBody(msgspec.Struct, frozen=True):
    """The v4 envelope, OpenAI's form and Anthropic's in one: every client finds its own."""

    error: ErrorFields
    errors: tuple[Notice, ...]
    messages: tuple[Notice, ...] = ()
    result: None = None
    success: bool = False
    type: str = "error"


_encoder: Final = msgspec.json.Encoder()


def refuse_method(method: str, allowed: Iterable[str]) -> MethodNotAllowed:
    """The error of a request with `method` where there are only those `allowed`."""
    error = MethodNotAllowed(f"{method} not supported for requested URI.")
    error.allowed = tuple(sorted(allowed))
    return error


def find_row(error: ServiceError) -> ErrorRow:
    """The row of `error`'s leaf; one that is missing counts as a defect of ours."""
    return ERROR_TABLE.get(type(error), ERROR_TABLE[InvariantBroken])


def render_error(error: ServiceError) -> bytes:
    """The body of `error`, the same on every route, as JSON."""
    row = find_row(error)
    fields = ErrorFields(error.message, row.type, row.name, error.param)
    return _encoder.encode(FailureBody(fields, (Notice(row.code, error.message),)))


def list_error_headers(error: ServiceError) -> Headers:
    """`x-should-retry`, and `retry-after` in whole seconds where waiting helps."""
    row = find_row(error)
    headers = [(b"x-should-retry", b"true" if row.should_retry else b"false")]
    pause_s = error.retry_after_s
    if pause_s is None and row.code == ERROR_TABLE[NoEndpoint].code:
        pause_s = _RETRY_AFTER_CAPACITY_S
    if pause_s is not None and row.should_retry:
        seconds = min(max(math.ceil(pause_s), 1), _MAX_RETRY_AFTER_S)
        headers.append((b"retry-after", b"%d" % seconds))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    if type(error) is AdapterUnsupported:  # the contract's status, which calls for the header
        headers.append((b"allow", b"POST"))
    if type(error) is CodingUnsupported:
        headers.append((b"accept-encoding", b"identity"))
    if type(error) is Unauthenticated:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def format_error_headers(error: ServiceError) -> bytes:
    """The same as whole lines."""
    return b"".join([b"%b: %b\r\n" % pair for pair in list_error_headers(error)])
