"""Proves both ends of a connection to each other before anything is served.

Owns `Challenge` and `Hello`; must not know streams. Read next: `contracts.grant`, `connection`.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from aiohttp import WSMsgType, web

from contracts.errors import Unauthenticated
from contracts.grant import NONCE_BYTES, WireEnd, derive_connection_key, prove_identity
from contracts.ids import GatewayId
from contracts.pair_key import PairKey
from contracts.wire import (
    CONNECTION_STREAM,
    GATEWAY_HEADER,
    GATEWAY_NONCE_HEADER,
    KEY_NAME_HEADER,
    Challenge,
    Entry,
    Hello,
    decode_frame,
    decode_to_node,
    encode_frame,
)

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding hostile bytes may raise; the last for nesting without end."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who an upgrade request says it is: nothing is proven yet."""

    gateway_id: GatewayId
    pair_key: PairKey
    gateway_nonce: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """A gateway that has proven itself."""

    gateway_id: GatewayId
    pair_key: PairKey
    """The one that it has proved."""
    connection_key: bytes
    report_s: float
    """Between two reports that it wants."""
    first_entries: tuple[Entry, ...]
    """What came in the same frame, behind `Hello`."""


class KeyBook(Protocol):
    """Who knows the pairs' keys."""

    def find(self, gateway_id: GatewayId, name: str) -> PairKey | None:
        """The key of that name which the gateway may use."""
        ...


def read_introduction(headers: Mapping[str, str], keys: KeyBook) -> Introduction:
    """What the upgrade request says. Raises: `Unauthenticated`."""
    gateway_id = GatewayId(headers.get(GATEWAY_HEADER, ""))
    pair_key = keys.find(gateway_id, headers.get(KEY_NAME_HEADER, ""))
    if pair_key is None:
        raise Unauthenticated("This gateway is not enrolled at this node, or not with this key.")
    try:
        nonce = bytes.fromhex(headers.get(GATEWAY_NONCE_HEADER, ""))
    except ValueError:
        nonce = b""
    if len(nonce) != NONCE_BYTES:
        raise Unauthenticated(f"`{GATEWAY_NONCE_HEADER}` must be {NONCE_BYTES} bytes as hex.")
    return Introduction(gateway_id, pair_key, nonce)


async def authenticate(
    socket: web.WebSocketResponse,
    introduction: Introduction,
    draw_bytes: Callable[[int], bytes],
) -> Session:
    """The session, once the gateway has answered the challenge; how long that may take is bound by
    whoever calls.

    Raises: `Unauthenticated` when the answer is wrong or not an answer.
    """
    key = introduction.pair_key.key
    node_nonce = draw_bytes(NONCE_BYTES)
    nonces = introduction.gateway_nonce + node_nonce
    proof = prove_identity(key, WireEnd.NODE, nonces)
    challenge = Challenge(node_nonce, proof)
    await socket.send_bytes(encode_frame([(CONNECTION_STREAM, 0, challenge)]))
    entries = await _receive_entries(socket)
    if socket.closed:
        raise Unauthenticated(
            "It left before it proved itself: its key is another, or `hearth doctor` has asked."
        )
    expected = prove_identity(key, WireEnd.GATEWAY, nonces)
    hello = _read_hello(entries)
    if hello is None or not hmac.compare_digest(hello.proof.encode(), expected.encode()):
        raise Unauthenticated("The gateway did not prove that it holds the key.")
    return Session(
        introduction.gateway_id,
        introduction.pair_key,
        derive_connection_key(key, nonces),
        hello.report_ms / 1000,
        tuple(entries[1:]),
    )


async def _receive_entries(socket: web.WebSocketResponse) -> list[Entry]:
    """The first frame; empty when there is none or it is malformed."""
    message = await socket.receive()
    if message.type is not WSMsgType.BINARY:
        return []
    try:
        return decode_frame(message.data)
    except MALFORMED:
        return []


def _read_hello(entries: list[Entry]) -> Hello | None:
    """The first of `entries`; None when it is something else."""
    try:
        message = decode_to_node(entries[0].message) if entries else None
    except MALFORMED:
        return None
    if isinstance(message, Hello) and entries[0].stream_id == CONNECTION_STREAM:
        return message
    return None
