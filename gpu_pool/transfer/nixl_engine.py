"""NIXL over UCX: shared memory, TCP or RDMA, as `UCX_TLS` and `UCX_NET_DEVICES` say.

A read that its peer does not answer stays under way for ever: deadlines are the caller's. NIXL's
own thread waits for events, which only its C++ interface can be told: with what its Python class
sets it asks for them without a pause, a whole core for an idle agent. Must not know blocks.
Source: NIXL 1.5, `nixl_agent` and `nixlAgentConfig.pthrDelay`. Read next: `transfer_engine`.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from contracts.errors import TransferFailed, UnsupportedFeature
from gpu_pool.transfer.transfer_engine import MAX_BATCH, Piece, ReadState, Region

_WAIT_US: Final = 10_000
"""The longest that NIXL's thread waits for an event."""


class NixlRead:
    """One transfer request."""

    def __init__(self, api: Any, agent: Any, request: int) -> None:
        """Takes a transfer that was started."""
        self._api = api
        self._agent = agent
        self._request = request
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
        self._peers: dict[str, tuple[bytes, str]] = {}
        """What each peer's agent has said of itself, and its name here."""
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
        try:
            if peer in self._peers and self._peers[peer][0] != agent:
                self.forget(peer)  # its agent is another process by now
            if peer not in self._peers:
                self._peers[peer] = agent, self._agent.loadRemoteMD(agent).decode()
            local = [(piece.local_address, piece.num_bytes, 0) for piece in pieces]
            remote = [(piece.remote_address, piece.num_bytes, 0) for piece in pieces]
            request = self._agent.createXferReq(
                api.NIXL_READ,
                api.nixlXferDList(api.DRAM_SEG, local),
                api.nixlXferDList(api.DRAM_SEG, remote),
                self._peers[peer][1],
            )
            status = self._agent.postXferReq(request)
        except Exception as error:
            raise TransferFailed(f"The transfer engine failed: {type(error).__name__}.") from error
        if status not in (api.NIXL_SUCCESS, api.NIXL_IN_PROG):
            raise TransferFailed("The transfer engine refused to read.")
        return NixlRead(api, self._agent, request)

    def forget(self, peer: str) -> None:
        """Disconnects from a peer."""
        known = self._peers.pop(peer, None)
        if known is not None:
            with contextlib.suppress(Exception):
                self._agent.invalidateRemoteMD(known[1])
