"""The blocks of one KV group as a plan acts on them: whose they are, cleaning, moves to the host.

Must not know sequences. Read next: `model_runner`, `gpu_pool.attention.kv_cache`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.attention.reach import Reach
from gpu_pool.plan import BlockId, BlockMove, HostMemory
from gpu_pool.runner.block_tags import BlockTags
from gpu_pool.runner.host_blocks import HostBlocks


@dataclass(frozen=True, slots=True)
class KvGroupMemory:
    """One KV group's memory, how far its layers look back, and room for preempted sequences."""

    cache: KvCache
    reach: Reach
    num_host_blocks: int = 0


class GroupBlocks:
    """All blocks of one group, on the device and on the host."""

    __slots__ = ("_blocks", "_cache", "_host", "_host_blocks", "reach", "tags")

    def __init__(self, memory: KvGroupMemory) -> None:
        """Takes host memory at once; where the device is a GPU, pinned."""
        self.reach = memory.reach
        self.tags = BlockTags(memory.cache.num_blocks)
        self._cache = memory.cache
        self._blocks = memory.cache.blocks
        self._host_blocks = HostBlocks(
            (memory.num_host_blocks, *self._blocks.shape[1:]),
            self._blocks.dtype,
            pins=self._blocks.device.type == "cuda" and memory.num_host_blocks > 0,
        )
        self._host = self._host_blocks.blocks

    @property
    def cache(self) -> KvCache:
        """The device's memory."""
        return self._cache

    @property
    def host_memory(self) -> HostMemory:
        """The host's memory as bytes."""
        num_host_blocks = max(1, self._host.shape[0])
        host_bytes = self._host.reshape(-1).view(torch.uint8)
        return HostMemory(
            host_bytes.numpy().data,
            host_bytes.numel() // num_host_blocks,
            self._host_blocks.handle,
        )

    def close(self) -> None:
        """Gives back what is held beside tensors."""
        self._host_blocks.close()

    def zero(self, block_ids: Sequence[BlockId] | Sequence[int]) -> None:
        """Makes blocks clean."""
        if block_ids:
            self._cache.clear(torch.tensor(block_ids, device=self._blocks.device))

    def move_out(self, moves: Sequence[BlockMove]) -> None:
        """Copies blocks to the host."""
        if moves:
            block_ids = [move.block_id for move in moves]
            index = torch.tensor(block_ids, device=self._blocks.device)
            host_ids = torch.tensor([move.host_id for move in moves])
            self._host[host_ids] = self._blocks.index_select(0, index).cpu()

    def move_in(self, moves: Sequence[BlockMove]) -> None:
        """Copies blocks back; nothing of them remains on the host."""
        if moves:
            block_ids = [move.block_id for move in moves]
            index = torch.tensor(block_ids, device=self._blocks.device)
            host_ids = torch.tensor([move.host_id for move in moves])
            self._blocks[index] = self._host[host_ids].to(self._blocks.device)
            self._host[host_ids] = 0
