"""What a core and its store agent tell each other: over each socket, one call after the other.

A message is its two lengths, then msgpack, then bytes as they are. Must not know what the bytes
are. Read next: `mooncake_agent` (one end), `mooncake_client` (the other).
"""

import enum
import socket
import struct
from typing import Final, TypeVar

import msgspec

_Words = TypeVar("_Words", bound=msgspec.Struct)
_LENGTHS: Final = struct.Struct("<IQ")
AWAY: Final = -900
"""Codes of the store from here down say that its master does not answer."""
ABSENT: Final = -704
PING: Final = b"?"
PONG: Final = b"!"
"""Over the first socket once the agent is ready, whose first thread answers."""


class StoreOp(enum.IntEnum):
    """What is wanted of the store."""

    LOOK_UP = 1
    """Answered with one byte for each name: 1 where there is such a block."""
    GET = 2
    PUT = 3
    REMOVE = 4


class StoreStart(msgspec.Struct, frozen=True, array_like=True):
    """The agent's settings, its first message. Units: bytes."""

    master: str
    local_host: str
    protocol: str
    segment_bytes: int
    buffer_bytes: int
    network_namespace: str = ""
    """The file of the one to enter first; empty: none."""


class StoreReady(msgspec.Struct, frozen=True, array_like=True):
    """How the agent's start ended."""

    reason: str = ""
    """Why it cannot serve; empty: it does."""
    is_final: bool = False
    """Another start would end in the same way."""


class StoreCall(msgspec.Struct, frozen=True, array_like=True):
    """One call; what is to be put stands behind it."""

    op: StoreOp
    names: tuple[str, ...]


class StoreAnswer(msgspec.Struct, frozen=True, array_like=True):
    """How a call ended; what was got stands behind it."""

    code: int
    """0 is success; else the store's own, which is negative."""


def send_message(channel: socket.socket, words: msgspec.Struct, content: bytes = b"") -> None:
    """Sends one message. Raises: `OSError`."""
    head = msgspec.msgpack.encode(words)
    channel.sendall(_LENGTHS.pack(len(head), len(content)) + head)
    if content:
        channel.sendall(content)


def receive_message(channel: socket.socket, kind: type[_Words]) -> tuple[_Words, bytes]:
    """The next message, and the bytes behind it. Raises: `EOFError`, `OSError`."""
    num_head, num_content = _LENGTHS.unpack(_receive(channel, _LENGTHS.size))
    words = msgspec.msgpack.decode(_receive(channel, num_head), type=kind)
    return words, _receive(channel, num_content)


def _receive(channel: socket.socket, num_bytes: int) -> bytes:
    """Exactly so many bytes."""
    received = bytearray(num_bytes)
    view, num_done = memoryview(received), 0
    while num_done < num_bytes:
        num_read = channel.recv_into(view[num_done:])
        if not num_read:
            raise EOFError
        num_done += num_read
    return bytes(received)
