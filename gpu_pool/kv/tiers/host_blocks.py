"""The engine's host blocks as bytes, and what else a tier has to know of a model's KV.

Must not know who reserves host blocks. Read next: `tier_source`, `tier_sink`.
"""

import hashlib
import sys
from dataclasses import dataclass

from gpu_pool.kv.host_pool import bound_account
from gpu_pool.kv.reach import Reach
from gpu_pool.plan import Executor, ExecutorInfo, HostBlockId, HostMemory


@dataclass(frozen=True, slots=True)
class HostBlocks:
    """Host memory of all KV groups. Units: `block_size` in tokens."""

    memory: tuple[HostMemory, ...]
    reaches: tuple[Reach, ...]
    block_size: int

    def view(self, group: int, host_id: HostBlockId) -> memoryview:
        """The bytes of one block."""
        memory = self.memory[group]
        size = memory.block_bytes
        return memory.buffer[host_id * size : (host_id + 1) * size]

    @property
    def num_fetchable(self) -> int:
        """Blocks of every group that keeps all of them that can come for one account at once."""
        rooms = (
            bound_account(len(memory.buffer) // memory.block_bytes)
            for memory, reach in zip(self.memory, self.reaches, strict=True)
            if not reach.is_local
        )
        return min(rooms, default=sys.maxsize)

    @property
    def has_local(self) -> bool:
        """True when some layers look back only so far: part of a prefix is of no use then."""
        return any(reach.is_local for reach in self.reaches)


def describe_blocks(executor: Executor) -> HostBlocks:
    """The host memory of a loaded model."""
    info = executor.info
    reaches = tuple(Reach(group, info.block_size) for group in info.kv_groups)
    return HostBlocks(executor.host_memory, reaches, info.block_size)


def digest_layout(info: ExecutorInfo) -> bytes:
    """16 bytes that stand for everything that says what the bytes of a block mean."""
    groups = [
        (group.kind.value, group.num_layers, group.block_bytes, group.window)
        for group in info.kv_groups
    ]
    text = repr((info.model_revision, info.kv_dtype, info.block_size, groups))
    return hashlib.sha256(b"hearth kv layout 1" + text.encode()).digest()[:16]
