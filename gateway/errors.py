"""The one table from error leaves to HTTP, and the bodies that carry them in each dialect.

Owns status, integer code, OpenAI type and code, and retry headers. Codes below 7400 are those of
the Workers AI contract; 74xx and 75xx are ours, chosen after the HTTP status they come with.
Must not know sockets. Read next: `contracts.errors`, whose leaves a test compares with the table.
"""

import math
from typing import Final, NamedTuple

import msgspec

from contracts.errors import (
    AccountSuspended,
    ConcurrencyLimited,
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    Forbidden,
    InvalidIdentifier,
    InvalidModelName,
    InvalidRequest,
    InvariantBroken,
    MethodNotAllowed,
    ModelCold,
    NodeUnreachable,
    NoEndpoint,
    NotFound,
    OutOfBlocks,
    PayloadTooLarge,
    PoolSaturated,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    ResidencyViolation,
    ServiceError,
    StoreUnavailable,
    StreamBroken,
    TransferFailed,
    Unauthenticated,
    UnknownModel,
    UnsupportedFeature,
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
    openai_type: str
    openai_code: str
    should_retry: bool


ERROR_TABLE: Final[dict[type[ServiceError], ErrorRow]] = {
    InvalidRequest: ErrorRow(400, 5006, INVALID, "invalid_request", False),
    InvalidModelName: ErrorRow(404, 3042, INVALID, "invalid_model_name", False),
    UnknownModel: ErrorRow(400, 5007, INVALID, "model_not_found", False),
    ContextTooLong: ErrorRow(400, 7400, INVALID, "context_length_exceeded", False),
    UnsupportedFeature: ErrorRow(400, 7401, INVALID, "unsupported_feature", False),
    PayloadTooLarge: ErrorRow(413, 3006, INVALID, "payload_too_large", False),
    RequestTimeout: ErrorRow(408, 3007, INVALID, "request_timeout", True),
    NotFound: ErrorRow(404, 7000, INVALID, "not_found", False),
    InvalidIdentifier: ErrorRow(404, 7003, INVALID, "invalid_identifier", False),
    MethodNotAllowed: ErrorRow(405, 7001, INVALID, "method_not_allowed", False),
    Conflict: ErrorRow(409, 7409, INVALID, "conflict", False),
    Unauthenticated: ErrorRow(401, 10000, "authentication_error", "invalid_api_key", False),
    Forbidden: ErrorRow(403, 10000, "permission_error", "forbidden", False),
    AccountSuspended: ErrorRow(403, 3023, "permission_error", "account_suspended", False),
    ResidencyViolation: ErrorRow(403, 7403, "permission_error", "residency_violation", False),
    RateLimited: ErrorRow(429, 7429, LIMIT, "rate_limit_exceeded", True),
    ConcurrencyLimited: ErrorRow(429, 7430, LIMIT, "concurrency_limited", True),
    QuotaExceeded: ErrorRow(429, 3036, LIMIT, "insufficient_quota", False),
    NoEndpoint: ErrorRow(429, 3040, CAPACITY, "no_capacity", True),
    ModelCold: ErrorRow(429, 3040, CAPACITY, "model_cold", True),
    PoolSaturated: ErrorRow(429, 3040, CAPACITY, "no_capacity", True),
    OutOfBlocks: ErrorRow(429, 3040, CAPACITY, "no_capacity", True),
    NodeUnreachable: ErrorRow(503, 7503, SERVER, "node_unreachable", True),
    StreamBroken: ErrorRow(502, 7502, SERVER, "stream_broken", True),
    DeadlineExceeded: ErrorRow(408, 3007, SERVER, "deadline_exceeded", False),
    TransferFailed: ErrorRow(502, 7504, SERVER, "transfer_failed", True),
    InvariantBroken: ErrorRow(500, 7500, SERVER, "internal_error", False),
    StoreUnavailable: ErrorRow(503, 7505, SERVER, "store_unavailable", True),
}

_RETRY_AFTER_CAPACITY_S: Final = 1
_MAX_RETRY_AFTER_S: Final = 60
"""Clients honour no longer pause than this and fall back to their own."""


class Notice(msgspec.Struct, frozen=True):
    """An entry of `errors` or `messages` in the v4 envelope."""

    code: int
    message: str


class OpenAiError(msgspec.Struct, frozen=True):
    """The `error` object of OpenAI's API."""

    message: str
    type: str
    code: str
    param: str | None


class _FailureEnvelope(msgspec.Struct, frozen=True):
    errors: tuple[Notice, ...]
    messages: tuple[Notice, ...] = ()
    result: None = None
    success: bool = False


class _OpenAiFailure(msgspec.Struct, frozen=True):
    """OpenAI's form and the v4 envelope in one, so that the clients of either find theirs."""

    error: OpenAiError
    errors: tuple[Notice, ...]
    messages: tuple[Notice, ...] = ()
    result: None = None
    success: bool = False


_encoder: Final = msgspec.json.Encoder()


def find_row(error: ServiceError) -> ErrorRow:
    """The row of `error`'s leaf; one that is missing counts as a defect of ours."""
    return ERROR_TABLE.get(type(error), ERROR_TABLE[InvariantBroken])


def render_envelope(error: ServiceError) -> bytes:
    """The v4 envelope of `error`, as JSON."""
    return _encoder.encode(_FailureEnvelope((Notice(find_row(error).code, error.message),)))


def render_openai_error(error: ServiceError) -> bytes:
    """OpenAI's error object inside the v4 envelope, as JSON."""
    row = find_row(error)
    body = OpenAiError(error.message, row.openai_type, row.openai_code, error.param)
    return _encoder.encode(_OpenAiFailure(body, (Notice(row.code, error.message),)))


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
    if type(error) is Unauthenticated:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def format_error_headers(error: ServiceError) -> bytes:
    """The same as whole lines."""
    return b"".join([b"%b: %b\r\n" % pair for pair in list_error_headers(error)])
