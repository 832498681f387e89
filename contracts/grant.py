"""The signed permission that travels with every request to a node.

Owns its fields and its seal (HMAC-SHA256 under a key of one gateway-node connection); must not
know where keys are kept. Nodes know no account beyond the grant and refuse what it does not cover.
Read next: `contracts.wire`, which carries it in `Open`.
"""

import hashlib
import hmac
from enum import StrEnum
from typing import Final

import msgspec

from contracts.ids import AccountId, ModelName, RegionId, RequestId
from contracts.seal import unseal

GRANT_VERSION: Final = 1
NONCE_BYTES: Final = 32


class WireEnd(StrEnum):
    """The two ends of a connection, as their proofs name them."""

    GATEWAY = "gateway"
    NODE = "node"


class RetentionClass(StrEnum):
    """What may remain of a request: `none` leaves nothing outside device memory."""

    STANDARD = "standard"
    NONE = "none"


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Who asks, for which model, within which limits.

    Later versions add fields at the end and raise `version`: decoders ignore what they do not
    know, and a node must not ignore a condition.

    Units: `deadline_unix_ms` in milliseconds since 1970, `max_total_tokens` prompt and output.
    """

    request_id: RequestId
    attempt: int
    account_id: AccountId
    cache_salt: bytes
    """Separates this account's prefix cache from all others; 32 bytes, never from a client."""
    model: ModelName
    regions: tuple[RegionId, ...] | None
    """Regions that may compute this: None means any, an empty tuple none at all."""
    priority: int
    retention: RetentionClass
    deadline_unix_ms: int
    max_total_tokens: int
    version: int = GRANT_VERSION
    trace: bytes = b""
    """Which trace the attempt is part of (`contracts.tracing`); empty where nobody traces it. No
    condition: nodes of versions without it pass over it."""
    session: int = 0
    """The router's name of the session that the request is of, which the node's reports repeat; 0:
    of none. No condition either."""
    prefixes: bytes = b""
    """The router's names of the prompt's beginnings (`contracts.prefix_keys`), which the node's
    reports repeat; empty where nothing of the prompt may remain. No condition either."""
    cached_share: float = 0.0
    """Of the prompt's tokens, those that the router expects in the node's cache: until its engine
    has looked, what the node says of its load rests on that. No condition either."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Grant)
_SHA256_BLOCK_BYTES: Final = 64
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))


class GrantSealer:
    """Seals many grants with one key.

    HMAC-SHA256 with the two blocks that depend on the key alone hashed once: a third of the time of
    `hmac.digest`, which sets everything up anew. Source: RFC 2104, section 4.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, connection_key: bytes) -> None:
        """`connection_key` is at most one block long."""
        padded = connection_key.ljust(_SHA256_BLOCK_BYTES, b"\0")
        assert len(padded) == _SHA256_BLOCK_BYTES
        self._inner = hashlib.sha256(padded.translate(_INNER_PAD))
        self._outer = hashlib.sha256(padded.translate(_OUTER_PAD))

    def seal(self, grant: Grant) -> bytes:
        """The grant as bytes, led by its authentication code."""
        payload = _encoder.encode(grant)
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(payload)
        outer.update(inner.digest())
        return outer.digest() + payload


def seal_grant(grant: Grant, connection_key: bytes) -> bytes:
    """The grant as bytes, led by its authentication code."""
    return GrantSealer(connection_key).seal(grant)


def unseal_grant(sealed: bytes, connection_key: bytes) -> Grant:
    """The grant inside `sealed`.

    Raises: `Forbidden` when the code does not fit, or the content is malformed or of a version
    that is newer than this one.
    """
    return unseal(sealed, connection_key, _decoder, GRANT_VERSION, "grant")


def prove_identity(pair_key: bytes, end: WireEnd, nonces: bytes) -> str:
    """Hexadecimal proof that `end` holds the pair's key, bound to this connection's nonces.

    `nonces` are the gateway's 32 bytes followed by the node's 32.
    """
    return hmac.new(pair_key, f"hearth {end}\0".encode() + nonces, hashlib.sha256).hexdigest()


def derive_connection_key(pair_key: bytes, nonces: bytes) -> bytes:
    """The key that seals grants on one connection, so that none can be replayed on another."""
    return hmac.digest(pair_key, b"hearth grants\0" + nonces, "sha256")
