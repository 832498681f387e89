"""What an engine's refusals and failures are in our own tree of errors.

Pure. Owns whose fault each is, the client's, the moment's or the node's, and what of the engine's
words a client may read. Read next: `contracts.errors`, `engine_link` (the caller).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from contracts.errors import (
    ContextTooLong,
    InvalidRequest,
    ModelFailed,
    PayloadTooLarge,
    PoolSaturated,
    RequestError,
    ServiceError,
    StreamBroken,
)
from gpu_pool.server.upstream.chunk import EngineFailure

MAX_MESSAGE_CHARS: Final = 300
_MAX_RETRY_S: Final = 3600.0
_TOO_LONG: Final = ("context length", "context_length", "max_model_len", "longer than the model")
BUSY: Final = frozenset({429, 503, 529})
_OF_CLIENT: Final = frozenset({400, 422})


class _ErrorBody(msgspec.Struct, frozen=True):
    """The two forms in which engines say it: inside `error`, or at the top."""

    error: EngineFailure | str | None = None
    message: str | None = None


_decoder: Final = msgspec.json.Decoder(_ErrorBody)


def to_service_error(
    status: int, body: bytes, secrets: Iterable[str] = (), retry_after: str | None = None
) -> ServiceError:
    """The error that an answer other than 200 stands for; `secrets` are taken out of its words."""
    if status in BUSY:
        return PoolSaturated(
            "The model's engine takes no more requests.", retry_after_s=_read_wait(retry_after)
        )
    if status in _OF_CLIENT:
        return _to_request_error(_read_message(body), secrets)
    if status == 413:
        return PayloadTooLarge("The request is larger than the model's engine takes.")
    if status in (401, 403):
        return ModelFailed("The model's engine refuses this node's key.")
    if status == 404:
        return ModelFailed("The model's engine does not know the model or the route.")
    if 300 <= status < 500:
        return ModelFailed(f"The model's engine answered with status {status}.")
    return StreamBroken(f"The model's engine failed with status {status}.")


def to_stream_error(
    failure: EngineFailure | str, secrets: Iterable[str], *, has_begun: bool
) -> ServiceError:
    """The error that an event inside a stream stands for.

    The engine has taken the request by then, so that only what precedes all text can be the
    client's fault.
    """
    if isinstance(failure, EngineFailure) and not has_begun and failure.code in _OF_CLIENT:
        return _to_request_error(failure.message, secrets)
    if isinstance(failure, EngineFailure) and failure.code in BUSY and not has_begun:
        return PoolSaturated("The model's engine takes no more requests.")
    return StreamBroken("The model's engine failed while it answered.")


def quote_words(message: str, secrets: Iterable[str]) -> str:
    """What of an engine's words others may read: without `secrets`, on one line, not long."""
    text = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    for secret in filter(None, secrets):
        text = text.replace(secret, "…")
    return text[:MAX_MESSAGE_CHARS]


def _to_request_error(message: str, secrets: Iterable[str]) -> RequestError:
    """The client's own mistake, in the engine's words."""
    text = quote_words(message, secrets) or "The model's engine refuses the request."
    is_too_long = any(words in message.lower() for words in _TOO_LONG)
    return ContextTooLong(text) if is_too_long else InvalidRequest(text)


def _read_message(body: bytes) -> str:
    """What the engine says went wrong; empty where that cannot be read."""
    try:
        told = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    if isinstance(told.error, EngineFailure):
        return told.error.message
    return told.error or told.message or ""


def _read_wait(retry_after: str | None) -> float | None:
    """Seconds until the engine wants to be asked again, if it says so in a way that counts."""
    if retry_after is None or not retry_after.isascii() or not retry_after.isdigit():
        return None
    return min(float(retry_after[:9]), _MAX_RETRY_S)
