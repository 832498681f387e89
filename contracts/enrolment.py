"""The token that brings a node its first key: written at the gateway, used once at the node.

Owns its fields and its text. The key inside is replaced as soon as the two have met, so that a
token that somebody finds later opens nothing. Must not know files. Read next: `contracts.pair_key`.
"""

import base64
import binascii
import hashlib
from typing import Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.ids import GatewayId, NodeId
from contracts.pair_key import PAIR_KEY_BYTES

PREFIX: Final = "hearth_enrol_"
_CHECK_BYTES: Final = 4
_MAX_CHARS: Final = 1024


class Enrolment(msgspec.Struct, frozen=True, array_like=True):
    """Which node may meet which gateway, with what key, until when."""

    gateway_id: GatewayId
    node_id: NodeId
    key: bytes
    until_unix_s: int

    def __repr__(self) -> str:
        return f"Enrolment({self.gateway_id}, {self.node_id})"  # never the key


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Enrolment)


def format_enrolment(enrolment: Enrolment) -> str:
    """The token."""
    payload = _encoder.encode(enrolment)
    return PREFIX + base64.b32encode(payload + _check(payload)).decode().rstrip("=")


def parse_enrolment(token: str) -> Enrolment:
    """The fields of a token. Raises: `InvalidRequest` for one that is malformed or cut."""
    malformed = InvalidRequest("This is no enrolment token, or not all of it.")
    text = token.strip().removeprefix(PREFIX)
    if not token.strip().startswith(PREFIX) or len(text) > _MAX_CHARS:
        raise malformed
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
        payload, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if check != _check(payload):
            raise malformed
        enrolment = _decoder.decode(payload)
    except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        raise malformed from None  # the cause could quote the key
    if len(enrolment.key) != PAIR_KEY_BYTES:
        raise malformed
    return enrolment


def _check(payload: bytes) -> bytes:
    """Tells a token that lost a character; proves nothing."""
    return hashlib.sha256(payload).digest()[:_CHECK_BYTES]
