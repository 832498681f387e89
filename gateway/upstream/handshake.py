"""How gateway and node prove to each other that they hold the pair's key.

Owns nonces, proofs and the key that seals this connection's grants; must not know sockets.
Source: `contracts.wire`, `contracts.grant`. Read next: `gateway.upstream.link`.
"""

import hmac

import msgspec

from contracts.grant import NONCE_BYTES, WireEnd, derive_connection_key, prove_identity
from contracts.ids import GatewayId
from contracts.pair_key import PairKey
from contracts.wire import (
    CONNECTION_STREAM,
    GATEWAY_HEADER,
    GATEWAY_NONCE_HEADER,
    KEY_NAME_HEADER,
    Challenge,
    Hello,
    decode_frame,
    decode_from_connection,
)


class HandshakeFailed(Exception):
    """The other side is not the node it should be; nothing may be sent to it."""


class Handshake:
    """One connection's proofs."""

    def __init__(self, pair_key: PairKey, gateway_id: GatewayId, nonce: bytes) -> None:
        """`nonce` is fresh for this connection."""
        self._pair_key = pair_key
        self._gateway_id = gateway_id
        self._nonce = nonce

    @property
    def headers(self) -> dict[str, str]:
        """What the upgrade request says."""
        return {
            GATEWAY_HEADER: self._gateway_id,
            GATEWAY_NONCE_HEADER: self._nonce.hex(),
            KEY_NAME_HEADER: self._pair_key.name,
        }

    def answer(self, frame: bytes, report_ms: int = 1000) -> tuple[Hello, bytes]:
        """Our proof with how often we want to hear of the node, and the connection's key, after the
        node's first frame.

        Raises: `HandshakeFailed` unless the node has proved that it holds the pair's key.
        """
        challenge = _read_challenge(frame)
        nonces = self._nonce + challenge.nonce
        key = self._pair_key.key
        expected = prove_identity(key, WireEnd.NODE, nonces)
        if len(challenge.nonce) != NONCE_BYTES or not hmac.compare_digest(
            expected.encode(), challenge.proof.encode()
        ):
            raise HandshakeFailed("the node's proof does not fit the pair's key")
        hello = Hello(prove_identity(key, WireEnd.GATEWAY, nonces), report_ms)
        return hello, derive_connection_key(key, nonces)


def _read_challenge(frame: bytes) -> Challenge:
    """The challenge that must be the first entry. Raises: `HandshakeFailed`."""
    try:
        entries = decode_frame(frame)
        message = decode_from_connection(entries[0].message) if entries else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandshakeFailed("the node's first frame is malformed") from error
    if not isinstance(message, Challenge) or entries[0].stream_id != CONNECTION_STREAM:
        raise HandshakeFailed("the node's first message is not a challenge")
    return message
