"""What a core and its transfer agent tell each other, as msgpack over a socket pair.

Read next: `agent` (one end), `agent_client` (the other).
"""

from typing import Final

import msgspec


class AgentStart(msgspec.Struct, frozen=True, array_like=True):
    """The agent's settings, its first message."""

    engine: str
    name: str
    sizes: tuple[int, ...]
    """Bytes of each shared memory, in the order of the file handles that were passed."""
    host: str = "127.0.0.1"
    """Where peers find this machine, for engines that have to be told."""
    network_namespace: str = ""
    """The file of the one to enter first; empty: none."""


class StartRead(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Read pieces: local and remote addresses and lengths, one after the other."""

    read_id: int
    peer: str
    agent: bytes
    pieces: tuple[tuple[int, int, int], ...]


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Are you there? Answered between two calls of the engine."""


class AgentReady(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The memory is registered."""

    agent: bytes
    """What peers have to know."""
    addresses: tuple[int, ...]
    """Where each shared memory lies in the agent."""


class ReadEnded(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A read is over."""

    read_id: int
    is_done: bool
    is_lost: bool = False
    """Some of it may still be written."""


class AgentFailed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The engine cannot be used; the agent ends."""

    reason: str
    is_final: bool = False
    """No other agent would do better: what it needs is not installed."""


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A ping's answer."""


ToAgent = StartRead | Ping
FromAgent = AgentReady | ReadEnded | AgentFailed | Pong

encoder: Final = msgspec.msgpack.Encoder()
start_decoder: Final = msgspec.msgpack.Decoder(AgentStart)
to_agent_decoder: Final[msgspec.msgpack.Decoder[ToAgent]] = msgspec.msgpack.Decoder(ToAgent)
from_agent_decoder: Final[msgspec.msgpack.Decoder[FromAgent]] = msgspec.msgpack.Decoder(FromAgent)
