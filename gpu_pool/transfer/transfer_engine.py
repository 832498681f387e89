"""What moves bytes from another node's host memory into ours: one small interface.

The reader owns the destination, so that a peer that dies or freezes can write nowhere. No engine
proves who it speaks to: what was read counts only after its tags were checked. An engine lives in a
process of its own (`agent`): some end their process when a peer fails, and the end of a process is
the one proof for all of them that nothing is written any more.
Read next: `nixl_engine`, `mooncake_engine`, `memory_engine` (for tests), `agent`.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

MAX_BATCH: Final = 512
"""Pieces of one read. Source: Mooncake refuses more than 2048 and may lose the peer over it."""


class Piece(NamedTuple):
    """One contiguous copy. Addresses are of the process whose engine registered the memory."""

    local_address: int
    remote_address: int
    num_bytes: int


class Region(NamedTuple):
    """Memory to be registered."""

    address: int
    num_bytes: int


class ReadState(Enum):
    """How far a read is."""

    PENDING = auto()
    DONE = auto()
    FAILED = auto()
    """It is over, and nothing is written any more."""
    LOST = auto()
    """The engine has given it up, but what was under way may still be written."""


class Read(Protocol):
    """A read under way."""

    def poll(self) -> ReadState:
        """How far it is. It goes on whether it is asked or not."""
        ...


class TransferEngine(Protocol):
    """One engine with its memory registered. Used by one thread."""

    def describe(self) -> bytes:
        """What a peer has to know to read from here."""
        ...

    def read(self, peer: str, agent: bytes, pieces: Sequence[Piece]) -> Read:
        """Begins to read at most `MAX_BATCH` pieces from the node that said `agent` of itself.

        `peer` names one life of it; it is connected to at the first read, and at the next one after
        a connection has failed: that is the engine's own affair, since it knows which reads were on
        which connection.
        Raises: `TransferFailed` when it cannot be; nothing is under way then.
        """
        ...
