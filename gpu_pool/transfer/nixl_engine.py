"""NIXL over UCX: shared memory, TCP or RDMA, as `UCX_TLS` and `UCX_NET_DEVICES` say.

A read that its peer does not answer stays under way for ever: deadlines are the caller's. NIXL's
own thread waits for events, which only its C++ interface can be told: with what its Python class
sets it asks for them without a pause, a whole core for an idle agent. Must not know blocks.
Source: NIXL 1.5, `nixl_agent` and `nixlAgentConfig.pthrDelay`. Read next: `transfer_engine`.
"""

import contextlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contracts.errors import TransferFailed, UnsupportedFeature
from gpu_pool.transfer.transfer_engine import MAX_BATCH, Piece, ReadState, Region

_WAIT_US: Final = 10_000
"""The longest that NIXL's thread waits for an event."""
MAX_CONNECTIONS: Final = 128
"""Peers come back under new names, and nobody says which are gone: beyond so many the one that was
used longest ago is let go. Who is there after all is connected to anew, in some milliseconds."""
_HEADER: Final = struct.Struct("<16sQ")
_MAGIC: Final = b"nixlSerDes|Agent"
"""What an agent says of itself begins with this, the length of its name, and its name."""


@dataclass(slots=True, eq=False)
class _Connection:
    """To one life of a peer; several reads are on it."""

    agent: bytes
    """What the peer's agent has said of itself."""
    name: str
    """The agent's, here."""
    num_reads: int = 0
    """Under way."""


class NixlRead:
    """One transfer request."""

    def __init__(
        self, api: Any, agent: Any, request: int, note_end: Callable[[ReadState], None]
    ) -> None:
        """Takes a transfer that was started; `note_end` hears once how it ended."""
        self._api = api
        self._agent = agent
        self._request = request
        self._note_end = note_end
        self._end: ReadState | None = None

    def poll(self) -> ReadState:
        """How far it is; a request that is over is given back."""
        if self._end is not None:
            return self._end
        try:
            status = self._agent.getXferStatus(self._request)
        except Exception:  # every class of the binding's errors means the connection's end
            status = None
        if status == self._api.NIXL_IN_PROG:
            return ReadState.PENDING
        self._end = ReadState.DONE if status == self._api.NIXL_SUCCESS else ReadState.FAILED
        with contextlib.suppress(Exception):
            self._agent.releaseXferReq(self._request)
        self._note_end(self._end)
        return self._end


class NixlEngine:
    """One NIXL agent."""

    def __init__(self, name: str, regions: Sequence[Region]) -> None:
        """Registers `regions`; `name` is nobody else's.

        Raises: `UnsupportedFeature` where NIXL is not installed.
        """
        try:
            from nixl_cu12 import _bindings as api  # pyright: ignore
        except ImportError as error:
            raise UnsupportedFeature(
                "NIXL is not installed; pip install 'hearth[kv]' (Linux, x86_64)."
            ) from error
        self._api: Any = api
        self._connections: dict[str, _Connection] = {}
        """By peer, the one used last at the end."""
        config = api.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = _WAIT_US
        config.syncMode = api.NIXL_THREAD_SYNC_NONE
        self._agent: Any = api.nixlAgent(name, config)
        self._agent.createBackend("UCX", {})
        registered = [(region.address, region.num_bytes, 0, b"") for region in regions]
        self._agent.registerMem(api.nixlRegDList(api.DRAM_SEG, registered))

    def describe(self) -> bytes:
        """The agent's addresses and keys."""
        return self._agent.getLocalMD()

    def read(self, peer: str, agent: bytes, pieces: Sequence[Piece]) -> NixlRead:
        """Begins to read. Raises: `TransferFailed`."""
        assert len(pieces) <= MAX_BATCH, "a batch that an engine may refuse"
        api = self._api
        connection = self._connect(peer, agent)
        local = [(piece.local_address, piece.num_bytes, 0) for piece in pieces]
        remote = [(piece.remote_address, piece.num_bytes, 0) for piece in pieces]
        try:
            request = self._agent.createXferReq(
                api.NIXL_READ,
                api.nixlXferDList(api.DRAM_SEG, local),
                api.nixlXferDList(api.DRAM_SEG, remote),
                connection.name,
            )
            status = self._agent.postXferReq(request)
        except Exception as error:
            if not isinstance(error, api.nixlNotFoundError) or not self._knows(connection):
                self._let_go(peer, connection)  # else it has no such memory, and all is well
            raise TransferFailed(f"The transfer engine failed: {type(error).__name__}.") from error
        if status not in (api.NIXL_SUCCESS, api.NIXL_IN_PROG):
            self._let_go(peer, connection)
            raise TransferFailed("The transfer engine refused to read.")
        connection.num_reads += 1
        return NixlRead(
            api, self._agent, request, lambda end: self._note_end(peer, connection, end)
        )

    def _connect(self, peer: str, agent: bytes) -> _Connection:
        """The connection to a peer, a new one where its agent is another process by now.

        Raises: `TransferFailed` for what no agent of that peer says of itself: NIXL has one
        connection for each name, so that who bears another's ends what is read from that one.
        """
        known = self._connections.get(peer)
        if known is not None and known.agent == agent:
            self._connections[peer] = self._connections.pop(peer)
            return known
        if known is not None:
            self._let_go(peer, known)
        if _find_name(agent).partition(".")[0] != peer:
            raise TransferFailed("The peer's agent bears another's name.")
        self._make_room()
        try:
            connection = _Connection(agent, self._agent.loadRemoteMD(agent).decode())
        except Exception as error:
            raise TransferFailed(f"The transfer engine failed: {type(error).__name__}.") from error
        self._connections[peer] = connection
        return connection

    def _make_room(self) -> None:
        """Lets connections go that nobody reads on, for one more; those that are read on stay."""
        for peer, connection in list(self._connections.items()):
            if len(self._connections) < MAX_CONNECTIONS:
                return
            if not connection.num_reads:
                self._let_go(peer, connection)

    def _note_end(self, peer: str, connection: _Connection, end: ReadState) -> None:
        """A read is over; one that failed has its connection's end told."""
        connection.num_reads -= 1
        if end is ReadState.FAILED:
            self._let_go(peer, connection)

    def _knows(self, connection: _Connection) -> bool:
        """False when the engine has dropped what it knew of the peer."""
        nothing = self._api.nixlXferDList(self._api.DRAM_SEG, [])
        try:
            status = self._agent.checkRemoteMD(connection.name, nothing)
        except Exception:
            return False
        return status == self._api.NIXL_SUCCESS

    def _let_go(self, peer: str, connection: _Connection) -> None:
        """The next read connects anew. What fails on a connection that was let go says nothing of
        the one that has taken its place.
        """
        if self._connections.get(peer) is connection:
            del self._connections[peer]
            with contextlib.suppress(Exception):
                self._agent.invalidateRemoteMD(connection.name)


def _find_name(agent: bytes) -> str:
    """How an agent calls itself; empty for what none says. Source: NIXL 1.5, `nixlSerDes`."""
    if len(agent) < _HEADER.size:
        return ""
    magic, num_bytes = _HEADER.unpack_from(agent)
    name = agent[_HEADER.size : _HEADER.size + num_bytes] if magic == _MAGIC else b""
    return name.decode(errors="replace")
