"""The host blocks of all KV groups as bytes, and where they lie in another process's mapping.

Must not know whose they are. Read next: `gpu_pool.plan.HostMemory`.
"""

from collections.abc import Sequence

from gpu_pool.plan import HostBlockId, HostMemory
from gpu_pool.transfer.transfer_engine import Region


class HostView:
    """Where each block lies. The memory outlives this."""

    def __init__(self, groups: Sequence[HostMemory]) -> None:
        """Holds on to the buffers."""
        self._groups = tuple(groups)

    @property
    def bytes_of_all(self) -> int:
        """One block of every group."""
        return sum(part.block_bytes for part in self._groups)

    def block_bytes(self, group: int) -> int:
        """The size of one block."""
        return self._groups[group].block_bytes

    def find_address(self, regions: Sequence[Region], group: int, host_id: HostBlockId) -> int:
        """Where a block begins in the process that has mapped the groups as `regions`."""
        return regions[group].address + host_id * self._groups[group].block_bytes

    def get_bytes(self, group: int, host_id: HostBlockId) -> memoryview:
        """What a block holds, not copied."""
        size = self._groups[group].block_bytes
        return self._groups[group].buffer[host_id * size : (host_id + 1) * size]
