"""What an engine core and the rank processes of its model say to one another, and how it travels.

One pair of connected sockets for each rank, whose other end only the rank has: when either process
is gone the other one's end says so at once. Read next: `rank_process`, `rank_team`.
"""

import socket
import struct
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from contracts.sections import LogSettings
from gpu_pool.parallel.place import RankPlace
from gpu_pool.plan import AdapterFile, AdapterNews, ExecutorInfo, ForwardPlan, ForwardResult
from gpu_pool.worker.settings import WorkerSettings

_LENGTH: Final = struct.Struct("!Q")
_CHUNK_BYTES: Final = 1 << 20


class StartRank(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first word to a rank."""

    settings: WorkerSettings
    place: RankPlace
    rendezvous: Path
    """A file that only the ranks of this model use."""
    join_timeout_s: float
    """How long ranks wait for one another at the start."""
    step_timeout_s: float
    """How long one exchange between ranks may take."""
    log: LogSettings
    log_context: dict[str, str]
    parent_pid: int


class RunStep(msgspec.Struct, frozen=True, tag=True):
    """Carry out a plan, after taking in what was drawn since the plan before."""

    plan: ForwardPlan
    drawn: tuple[ForwardResult, ...]


class SleepRank(msgspec.Struct, frozen=True, tag=True):
    """Move the weights to the host."""


class WakeRank(msgspec.Struct, frozen=True, tag=True):
    """Bring the weights back."""


class MeasureAdapter(msgspec.Struct, frozen=True, tag=True):
    """Find out what the rank's part of an adapter takes."""

    adapter: AdapterFile


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Load the rank's part of an adapter, between two steps."""

    adapter: AdapterFile


class DropAdapter(msgspec.Struct, frozen=True, tag=True):
    """Free an adapter that is there."""

    digest: bytes


class CloseRank(msgspec.Struct, frozen=True, tag=True):
    """Free everything and end."""


class RankJoined(msgspec.Struct, frozen=True, tag=True):
    """The ranks have met."""


class RankLoading(msgspec.Struct, frozen=True, tag=True):
    """How far the rank's load is. Units: bytes."""

    num_bytes: int
    num_expected_bytes: int


class RankReady(msgspec.Struct, frozen=True, tag=True):
    """The rank's part is loaded."""

    info: ExecutorInfo


class RankStepped(msgspec.Struct, frozen=True, tag=True):
    """What a step has brought; only the rank that draws says it."""

    result: ForwardResult


class RankMoved(msgspec.Struct, frozen=True, tag=True):
    """The weights are where they were to be."""

    num_bytes: int


class RankAdapted(msgspec.Struct, frozen=True, tag=True):
    """What has become of an adapter that was to be measured or loaded."""

    news: AdapterNews


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """The rank cannot go on and ends."""

    reason: str
    is_final: bool
    """It would fail the next time, too."""


AboutAdapter = MeasureAdapter | LoadAdapter | DropAdapter
ToRank = StartRank | RunStep | SleepRank | WakeRank | CloseRank | AboutAdapter
FromRank = RankJoined | RankLoading | RankReady | RankStepped | RankMoved | RankAdapted | RankFailed
WordT = TypeVar("WordT", ToRank, FromRank)


class RankLink:
    """One end of a pair of sockets. Used by one thread."""

    def __init__(self, connection: socket.socket) -> None:
        """Takes the socket; it blocks until `limit` says otherwise."""
        self._socket = connection

    def limit(self, timeout_s: float | None) -> None:
        """How long one call may wait. Later calls raise `TimeoutError` beyond that."""
        self._socket.settimeout(timeout_s)

    def fileno(self) -> int:
        """For whoever waits for several."""
        return self._socket.fileno()

    def send(self, word: ToRank | FromRank) -> None:
        """Sends a word. Raises: `OSError` when the other process is gone."""
        content = msgspec.msgpack.encode(word, enc_hook=str)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, decoder: "msgspec.msgpack.Decoder[WordT]") -> WordT:
        """The next word. Raises: `EOFError` when the other process is gone."""
        (size,) = _LENGTH.unpack(self._receive_bytes(_LENGTH.size))
        return decoder.decode(self._receive_bytes(size))

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

    def _receive_bytes(self, size: int) -> bytes:
        """Exactly so many bytes."""
        received = bytearray()
        while len(received) < size:
            try:
                chunk = self._socket.recv(min(size - len(received), _CHUNK_BYTES))
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise EOFError("the other process is gone")
            received += chunk
        return bytes(received)


def _decode_path(kind: type, value: Any) -> Path:
    """Paths are text on the way."""
    assert kind is Path
    return Path(str(value))


to_rank_decoder: Final = msgspec.msgpack.Decoder(ToRank, dec_hook=_decode_path)
from_rank_decoder: Final = msgspec.msgpack.Decoder(FromRank)
