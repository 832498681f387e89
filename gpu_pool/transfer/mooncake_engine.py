"""Mooncake's transfer engine: over TCP.

Its reads block, so each runs in a thread. Its limits on what one peer may have under way are raised
by `agent_client`, and batches are small besides: beyond them it loses the peer for good. Must not
know blocks. Source: mooncake-transfer-engine 0.3.13. Read next: `transfer_engine`.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from contracts.errors import TransferFailed, UnsupportedFeature
from gpu_pool.transfer.transfer_engine import MAX_BATCH, Piece, ReadState, Region

_NUM_READS: Final = 4
"""Batches that are read at the same time."""


class MooncakeRead:
    """One batch in a thread."""

    def __init__(self, outcome: "Future[int]") -> None:
        """0 is success."""
        self._outcome = outcome

    def poll(self) -> ReadState:
        """How far it is."""
        if not self._outcome.done():
            return ReadState.PENDING
        is_done = self._outcome.exception() is None and self._outcome.result() == 0
        return ReadState.DONE if is_done else ReadState.LOST


class MooncakeEngine:
    """One engine object."""

    def __init__(self, host: str, regions: Sequence[Region]) -> None:
        """Registers `regions`; peers connect to `host`, though it listens everywhere.

        Raises: `UnsupportedFeature`, `TransferFailed`.
        """
        try:
            from mooncake.engine import (  # pyright: ignore[reportMissingImports]
                TransferEngine as Engine,
            )
        except ImportError as error:
            raise UnsupportedFeature(
                "Mooncake is not installed; pip install 'hearth[mooncake]' and libibverbs1."
            ) from error
        self._engine: Any = Engine()
        if self._engine.initialize(host, "P2PHANDSHAKE", "tcp", "") != 0:
            raise TransferFailed("Mooncake's engine does not start.")
        self._session = f"{host}:{self._engine.get_rpc_port()}"
        for region in regions:
            if self._engine.register_memory(region.address, region.num_bytes) != 0:
                raise TransferFailed("Mooncake does not take the memory.")
        self._threads = ThreadPoolExecutor(_NUM_READS, "mooncake")

    def describe(self) -> bytes:
        """Where it listens."""
        return self._session.encode()

    def read(self, peer: str, agent: bytes, pieces: Sequence[Piece]) -> MooncakeRead:
        """Begins to read. Raises: `TransferFailed` for what is no peer's address."""
        assert len(pieces) <= MAX_BATCH, "a batch that the engine may refuse"
        if not agent.isascii():
            raise TransferFailed("The peer's address is malformed.")
        outcome = self._threads.submit(
            self._engine.batch_transfer_sync_read,
            agent.decode(),
            [piece.local_address for piece in pieces],
            [piece.remote_address for piece in pieces],
            [piece.num_bytes for piece in pieces],
        )
        return MooncakeRead(outcome)
