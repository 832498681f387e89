"""An engine for tests on one machine: it copies out of another process's memory by its id.

Must not be used between machines. Source: process_vm_readv(2). Read next: `transfer_engine`.
"""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from contracts.errors import TransferFailed
from gpu_pool.transfer.transfer_engine import Piece, ReadState

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Span(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class FinishedRead:
    """A read that is over already."""

    state: ReadState

    def poll(self) -> ReadState:
        """What came of it."""
        return self.state


class MemoryEngine:
    """Copies at once."""

    def describe(self) -> bytes:
        """The process's id."""
        return str(os.getpid()).encode()

    def read(self, peer: str, agent: bytes, pieces: Sequence[Piece]) -> FinishedRead:
        """Copies all pieces. Raises: `TransferFailed` when the process is gone."""
        for piece in pieces:
            local = _Span(piece.local_address, piece.num_bytes)
            remote = _Span(piece.remote_address, piece.num_bytes)
            copied = _LIBC.process_vm_readv(
                int(agent), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0
            )
            if copied != piece.num_bytes:
                raise TransferFailed("The other process's memory cannot be read.")
        return FinishedRead(ReadState.DONE)
