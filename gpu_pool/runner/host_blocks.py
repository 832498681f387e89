"""Host memory for blocks, which a transfer agent beside this process can map, too.

Must not know what lies in it. Read next: `group_blocks`, `gpu_pool.transfer.agent_client`.
"""

import math
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from contracts.settings import SettingsError


class HostBlocks:
    """Zeros on whole pages; pinned where the device is a GPU."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, *, pins: bool) -> None:
        """Takes the memory at once; none where `shape` has no elements.

        Raises: `SettingsError` where the system does not let so much be pinned.
        """
        self._pinned: int | None = None
        num_bytes = math.prod(shape) * dtype.itemsize
        self.handle: int | None = None
        """The memory's file, where the system can share it."""
        if num_bytes == 0 or sys.platform != "linux":
            self.blocks: Tensor = torch.zeros(tuple(shape), dtype=dtype, pin_memory=pins)
            return
        self.handle = os.memfd_create("hearth-kv", os.MFD_CLOEXEC)
        os.ftruncate(self.handle, num_bytes)
        mapping = mmap.mmap(self.handle, num_bytes)
        self.blocks = torch.frombuffer(mapping, dtype=dtype).view(tuple(shape))
        if pins:
            _pin(self.blocks.data_ptr(), num_bytes)
            self._pinned = self.blocks.data_ptr()

    def put(self, ids: Sequence[int], copies: Tensor) -> None:
        """Begins to copy blocks to their places, which ascend: one transfer for each run of them.

        Copies from a GPU are there once its stream has come so far.
        """
        for first, place, length in find_runs(ids):
            self.blocks[place : place + length].copy_(
                copies[first : first + length], non_blocking=True
            )

    def get(self, ids: Sequence[int], copies: Tensor) -> None:
        """Begins to copy blocks from their places, as `put` does, into `copies`."""
        for first, place, length in find_runs(ids):
            copies[first : first + length].copy_(
                self.blocks[place : place + length], non_blocking=True
            )

    def zero(self, ids: Sequence[int]) -> None:
        """Nothing remains of those blocks."""
        if ids:
            self.blocks[torch.tensor(ids)] = 0

    def close(self) -> None:
        """Closes the file; the memory goes with the tensor."""
        if self._pinned is not None:
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(self._pinned)
            self._pinned = None
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def _pin(address: int, num_bytes: int) -> None:
    """Locks memory in place for a GPU's transfers. Raises: `SettingsError`."""
    runtime: Any = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(address, num_bytes, 0))
    if code:
        raise SettingsError(
            f"{num_bytes} bytes of the host's memory cannot be pinned (CUDA's error {code}). Lower "
            "`swap_bytes` or what tiers stage, or let the process lock more (ulimit -l)."
        )


def find_runs(ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Index, first id and length of each stretch of ids that follow one another."""
    first = 0
    for index in range(1, len(ids) + 1):
        if index == len(ids) or ids[index] != ids[index - 1] + 1:
            yield first, ids[first], index - first
            first = index
