"""Payload logs as rows: what the database may see, and what only the account's key opens.

Owns the sealed form. Read next: `tenancy.encryption.envelope`.
"""

from typing import Any, Final

import msgspec
from sqlalchemy import Row

from contracts.ids import AccountId, ApiTokenId, ModelName, RequestId
from contracts.payloads import DAY_MS, NewPayload, Payload, PayloadHead
from tenancy.encryption.envelope import Cell, seal, unseal
from tenancy.sources import Randomness

_decoder: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes])


def to_row(payload: NewPayload, days: int, key: bytes, randomness: Randomness) -> dict[str, Any]:
    """The row that keeps `payload` for so many days under the account's data key."""
    text = msgspec.msgpack.encode((payload.asked, payload.answered))
    cell = _to_cell(payload.account_id, payload.request_id)
    return {
        "request_id": payload.request_id,
        "account_id": payload.account_id,
        "api_token_id": payload.api_token_id,
        "route": payload.route,
        "model": payload.model,
        "status": payload.status,
        "began_unix_ms": payload.began_unix_ms,
        "expires_unix_ms": payload.began_unix_ms + days * DAY_MS,
        "num_bytes": len(payload.asked) + len(payload.answered),
        "is_cut": payload.is_cut,
        "sealed": seal(key, text, cell, randomness),
    }


def to_head(row: Row[Any]) -> PayloadHead:
    """What a row says openly."""
    return PayloadHead(
        request_id=RequestId(row.request_id),
        api_token_id=ApiTokenId(row.api_token_id),
        route=row.route,
        model=ModelName(row.model),
        status=row.status,
        began_unix_ms=row.began_unix_ms,
        expires_unix_ms=row.expires_unix_ms,
        num_bytes=row.num_bytes,
        is_cut=row.is_cut,
    )


def open_row(row: Row[Any], key: bytes) -> Payload:
    """All of a row. Raises: `InvariantBroken` when the key does not fit."""
    cell = _to_cell(AccountId(row.account_id), RequestId(row.request_id))
    asked, answered = _decoder.decode(unseal(key, row.sealed, cell))
    return Payload(head=to_head(row), asked=asked, answered=answered)


def _to_cell(account_id: AccountId, request_id: RequestId) -> Cell:
    return Cell("payload_logs", request_id, "sealed", account_id)
