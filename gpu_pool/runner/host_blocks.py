"""Host memory for blocks, which a transfer agent beside this process can map, too.

Must not know what lies in it. Read next: `group_blocks`, `gpu_pool.transfer.agent_client`.
"""

import math
import mmap
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class HostBlocks:
    """Zeros on whole pages; pinned where the device is a GPU."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, *, pins: bool) -> None:
        """Takes the memory at once; none where `shape` has no elements."""
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
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostRegister(self.blocks.data_ptr(), num_bytes, 0)

    def close(self) -> None:
        """Closes the file; the memory goes with the tensor."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
