"""A node's signed word that it is there: where it is reached, how it is, when it said so.

Heartbeats lie in a store that nobody has to trust: each carries an authentication code under every
key that its node shares with a gateway, so that no other node, and not the store, can write one.
Owns their fields, their seal and their names in the store; must not know stores, nor what a gateway
makes of them. Read next: `contracts.pair_key`, `contracts.fleet`, `gateway.membership`.
"""

import hmac
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from contracts.fleet import NodeReport
from contracts.ids import NodeId
from contracts.pair_key import PairKey

MAX_HEARTBEAT_BYTES: Final = 256 * 1024
"""Beyond it, what lies in the store is no heartbeat: a few hundred models take a tenth of that."""
KEPT_S: Final = 120
"""How long the store keeps the last one of a node that has stopped writing."""
_NAME_PREFIX: Final = "hearth:members:"
_MAX_URL: Final = 512
_LABEL: Final = b"hearth heartbeat\0"


class HeartbeatRefusal(StrEnum):
    """Why a heartbeat changes nothing."""

    MALFORMED = "malformed"
    SIGNATURE = "signature"
    """Not by this node, or not for this gateway."""
    CLOCK = "clock"
    """Said too long ago, or in a time to come: the node's clock, ours, or an old one put back."""
    REPLAY = "replay"
    """The node has said something later already."""
    ADDRESS = "address"
    """It is to be reached in a way that operators have not allowed."""
    REGION = "region"
    """It claims to be elsewhere than operators say."""


class HeartbeatRefused(Exception):
    """What lies in the store under a node's name is not to be believed."""

    def __init__(self, reason: HeartbeatRefusal, words: str = "") -> None:
        """`reason` is for counting; `words` say more of it."""
        super().__init__(reason)
        self.reason: Final = reason
        self.words: Final = words


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """What a node says about once a second. Units: `unix_ms` in milliseconds since 1970."""

    unix_ms: Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
    """Later than that of every heartbeat before: it orders them."""
    url: Annotated[str, msgspec.Meta(max_length=_MAX_URL)]
    """Where gateways connect."""
    report: NodeReport
    """What it tells connected gateways, too."""
    is_leaving: bool = False
    """Its last word: the process ends."""


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A heartbeat as it lies in the store."""

    payload: bytes
    macs: dict[str, bytes]
    """By the name of the key."""


_encoder: Final = msgspec.msgpack.Encoder()
_sealed_decoder: Final = msgspec.msgpack.Decoder(_Sealed)
_decoder: Final = msgspec.msgpack.Decoder(Heartbeat)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoders raise; the last of values within values within values, however short."""


def name_heartbeat(node_id: NodeId) -> str:
    """The key in the store under which a node's last heartbeat lies."""
    return _NAME_PREFIX + node_id


def seal_heartbeat(heartbeat: Heartbeat, keys: Iterable[PairKey]) -> bytes:
    """The heartbeat for every gateway that shares one of `keys` with the node."""
    payload = _encoder.encode(heartbeat)
    macs = {key.name: _authenticate(payload, key) for key in keys}
    return _encoder.encode(_Sealed(payload, macs))


def open_heartbeat(sealed: bytes, node_id: NodeId, key: PairKey) -> Heartbeat:
    """The heartbeat of `node_id`, which shares `key` with us. Raises: `HeartbeatRefused`."""
    if len(sealed) > MAX_HEARTBEAT_BYTES:
        raise HeartbeatRefused(HeartbeatRefusal.MALFORMED)
    try:
        envelope = _sealed_decoder.decode(sealed)
    except _UNREADABLE:
        raise HeartbeatRefused(HeartbeatRefusal.MALFORMED) from None
    mac = envelope.macs.get(key.name, b"")
    if not hmac.compare_digest(mac, _authenticate(envelope.payload, key)):
        raise HeartbeatRefused(HeartbeatRefusal.SIGNATURE)
    heartbeat = read_payload(envelope.payload)
    if heartbeat.report.node_id != node_id:
        raise HeartbeatRefused(HeartbeatRefusal.SIGNATURE)
    return heartbeat


def read_payload(payload: bytes) -> Heartbeat:
    """What is said, whoever has said it. Raises: `HeartbeatRefused`."""
    try:
        return _decoder.decode(payload)
    except _UNREADABLE:
        raise HeartbeatRefused(HeartbeatRefusal.MALFORMED) from None


def require_order(heartbeat: Heartbeat, last_unix_ms: int, now_ms: int, max_skew_ms: int) -> None:
    """Raises `HeartbeatRefused` for one that is not later than the last, or far from our time.

    The second keeps out old ones that are put back where the last one is not known any more.
    """
    if abs(heartbeat.unix_ms - now_ms) > max_skew_ms:
        raise HeartbeatRefused(HeartbeatRefusal.CLOCK)
    if heartbeat.unix_ms <= last_unix_ms:
        raise HeartbeatRefused(HeartbeatRefusal.REPLAY)


def _authenticate(payload: bytes, key: PairKey) -> bytes:
    return hmac.digest(key.key, _LABEL + payload, "sha256")
