"""Payload logs: what was asked and answered, word for word, for accounts that want it kept.

Owns the values that gateways and tenancy exchange about them. Must not know HTTP or tables.
Read next: `tenancy.payloads.store`. Units: milliseconds since 1970, bytes.
"""

from typing import Final

import msgspec

from contracts.ids import AccountId, ApiTokenId, ModelName, RequestId

MAX_PAYLOAD_DAYS: Final = 90
DAY_MS: Final = 86_400_000


class NewPayload(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its answer, as they crossed the wire."""

    request_id: RequestId
    account_id: AccountId
    api_token_id: ApiTokenId
    route: str
    model: ModelName
    """Empty where no node offers what was asked for."""
    status: int
    began_unix_ms: int
    asked: bytes
    """The body."""
    answered: bytes
    """The answer's body; of a stream, its events."""
    is_cut: bool
    """True when one of the two was longer than what is kept of it."""


class PayloadHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kept payload without opening it."""

    request_id: RequestId
    api_token_id: ApiTokenId
    route: str
    model: ModelName
    status: int
    began_unix_ms: int
    expires_unix_ms: int
    num_bytes: int
    """Of what was asked and answered together."""
    is_cut: bool


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A kept payload, opened."""

    head: PayloadHead
    asked: bytes
    answered: bytes
