"""Frames between gateway and node: many streams over one WebSocket, msgpack inside.

A frame is a list of entries `[stream_id, attempt, message]`; the message stays raw until its
stream takes it, so that a bad one harms one stream. Stream 0 speaks for the connection itself.
To the node: `Open`, `Body`, `Abort`, `Credit`, and `Place` on stream 0. Back: `GenerationEvent`s,
and `Report` on stream 0. Where another node computes the prompt, `contracts.kv_transfer` adds to
both ways, and `contracts.adapters` where a request is computed with an adapter: a node asks for the
file of no other, and gateways send such requests to nodes alone whose cards take them, so that
versions without adapters see neither message.
The upgrade request names the gateway and its nonce; then `Challenge` and `Hello` prove both sides.
Must not know sockets. Read next: `gateway/upstream/`, `gpu_pool/server/`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from contracts.adapters import AdapterPiece, AdapterWanted
from contracts.fleet import NodeReport
from contracts.inference import GenerationEvent
from contracts.kv_transfer import KvImport, KvRelease, KvStop, TransferEvent
from contracts.placement import PlacementPlan

WIRE_PATH: Final = "/wire/v1"
GATEWAY_HEADER: Final = "x-hearth-gateway"
KEY_NAME_HEADER: Final = "x-hearth-key"
"""Which of the pair's keys the gateway will prove; versions that replace none leave it out."""
GATEWAY_NONCE_HEADER: Final = "x-hearth-gateway-nonce"
"""Carries `NONCE_BYTES` random bytes in hexadecimal."""
CONNECTION_STREAM: Final = 0
FRAGMENT_BYTES: Final = 64 * 1024
"""Bodies travel in pieces of at most this size, so that an abort overtakes a long one."""
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
"""Whoever gets a larger one closes the connection, and so all that is on it."""
MAX_AHEAD: Final = 256
"""Deltas beyond its credit that a node sends where the end of a choice or stream waits for them."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One message of one stream. `attempt` fences answers to an earlier try."""

    stream_id: int
    attempt: int
    message: msgspec.Raw


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Stream 0, node to gateway, first entry: the node's nonce, and proof that it holds the key."""

    nonce: bytes
    proof: str


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Stream 0, gateway to node, first entry: the gateway's proof. Nothing is served before it."""

    proof: str
    report_ms: int = 1000
    """How long the gateway would rather not wait for news of a busy node's load."""


class Open(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Starts a stream. `body` is the first fragment of a msgpack `NodeRequest`.

    Units: `credit` counts the deltas of any kind (text, reasoning, tool calls) that the node may
    send before it has to merge further ones. `MAX_AHEAD` more may go before the end of a choice or
    of the stream; what is left then waits for credit, and the end waits for it.
    """

    sealed_grant: bytes
    num_body_bytes: int
    credit: int
    body: bytes
    sealed_ticket: bytes = b""
    """Set where this node is to do one half of a generation: a `KvTicket`."""


class Body(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The next fragment of a stream's body."""

    body: bytes


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Ends a stream early; the node answers with `Finished(aborted)` and what was consumed."""


class Credit(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Lets the node send `num_deltas` more deltas of any kind."""

    num_deltas: int


class Place(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Stream 0, gateway to node: where its models should be. Only for nodes whose reports say where
    they are: earlier ones close the connection.
    """

    plan: PlacementPlan


class NewKey(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Stream 0, gateway to node: a key that is to follow the pair's own, sealed for this connection
    (`contracts.pair_key`). Nodes of versions without it close the connection.
    """

    nonce: bytes
    sealed_key: bytes


class NewKeyKept(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Stream 0, node to gateway: both keys are valid here now, until the new one is used."""

    refusal: str = ""
    """Why it is not so; empty if it is."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Stream 0, node to gateway: the node's state."""

    report: NodeReport


ToNode = (
    Hello
    | Open
    | Body
    | Abort
    | Credit
    | Place
    | NewKey
    | KvImport
    | KvRelease
    | KvStop
    | AdapterPiece
)
StreamEvent = GenerationEvent | TransferEvent | AdapterWanted
FromNode = StreamEvent | Challenge | Report | NewKeyKept


class FromNodeEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An `Entry` from a node with its message decoded; None stands for one that cannot be read."""

    stream_id: int
    attempt: int
    message: FromNode | None


_encoder: Final = msgspec.msgpack.Encoder()
_frame_decoder: Final = msgspec.msgpack.Decoder(list[Entry])
_to_node_decoder: Final = msgspec.msgpack.Decoder(ToNode)
_from_node_frame_decoder: Final = msgspec.msgpack.Decoder(list[FromNodeEntry])
_from_node_decoder: Final[msgspec.msgpack.Decoder[FromNode]] = msgspec.msgpack.Decoder(FromNode)
_event_decoder: Final[msgspec.msgpack.Decoder[GenerationEvent]] = msgspec.msgpack.Decoder(
    GenerationEvent
)
_MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_from_connection_decoder: Final[msgspec.msgpack.Decoder[Challenge | Report | NewKeyKept]] = (
    msgspec.msgpack.Decoder(Challenge | Report | NewKeyKept)
)


def encode_frame(entries: Sequence[tuple[int, int, ToNode | FromNode]]) -> bytes:
    """A frame of `(stream_id, attempt, message)` entries, in order."""
    return _encoder.encode(entries)


def decode_frame(frame: bytes) -> list[Entry]:
    """The entries of `frame`, messages still raw.

    Raises: `msgspec.MsgspecError` when the frame itself is malformed; close the connection then.
    """
    return _frame_decoder.decode(frame)


def decode_frame_from_node(frame: bytes) -> list[FromNodeEntry]:
    """The entries of `frame` with their messages, in one pass; one by one if that fails.

    Raises: as `decode_frame`.
    """
    try:
        return _from_node_frame_decoder.decode(frame)
    except _MALFORMED:
        return list(map(decode_from_node, decode_frame(frame)))


def decode_from_node(entry: Entry) -> FromNodeEntry:
    """One entry of `decode_frame` with its message."""
    return FromNodeEntry(entry.stream_id, entry.attempt, _decode_or_none(entry.message))


def decode_to_node(message: msgspec.Raw) -> ToNode:
    """A message for a node. Raises: `msgspec.MsgspecError`."""
    return _to_node_decoder.decode(message)


def decode_event(message: msgspec.Raw) -> GenerationEvent:
    """An event of a stream. Raises: `msgspec.MsgspecError`."""
    return _event_decoder.decode(message)


def decode_from_connection(message: msgspec.Raw) -> Challenge | Report | NewKeyKept:
    """A message of stream 0, from the node. Raises: `msgspec.MsgspecError`."""
    return _from_connection_decoder.decode(message)


def _decode_or_none(message: msgspec.Raw) -> FromNode | None:
    """A message of a node; None when it cannot be read."""
    try:
        return _from_node_decoder.decode(message)
    except _MALFORMED:
        return None
