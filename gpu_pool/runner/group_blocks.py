"""The blocks of one KV group as a plan acts on them: whose they are, cleaning, moves to the host.

Must not know sequences. Read next: `model_runner`, `gpu_pool.attention.kv_cache`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.attention.reach import Reach
from gpu_pool.kernels.block_copy import gather_blocks, scatter_blocks
from gpu_pool.kernels.device_values import to_device
from gpu_pool.plan import BlockId, BlockMove, BlockRange, HostMemory, KvSlabs
from gpu_pool.runner.block_tags import BlockTags
from gpu_pool.runner.host_blocks import HostBlocks
from gpu_pool.weights.pages import Span, discard_pages

_STAGED_BYTES: Final = 64 << 20
"""What moves at once takes beside the blocks, on the device."""


@dataclass(frozen=True, slots=True)
class KvGroupMemory:
    """One KV group's memory, how far its layers look back, and room for preempted sequences."""

    cache: KvCache
    reach: Reach
    num_host_blocks: int = 0
    slabs: KvSlabs | None = None
    """In which its memory comes and goes; None: it stays."""


class GroupBlocks:
    """All blocks of one group, on the device and on the host."""

    __slots__ = ("_blocks", "_cache", "_host", "_is_staged", "reach", "tags")

    def __init__(self, memory: KvGroupMemory) -> None:
        """Takes host memory at once; where the device is a GPU, pinned."""
        self.reach = memory.reach
        self.tags = BlockTags(memory.cache.num_blocks)
        self._cache = memory.cache
        self._blocks = memory.cache.blocks
        self._is_staged = self._blocks.device.type != "cpu"
        """What lies together crosses a bus in one transfer; within memory it would be copied twice,
        and prompts that land would hold up the answers of their step for longer."""
        self._host = HostBlocks(
            (memory.num_host_blocks, *self._blocks.shape[1:]),
            self._blocks.dtype,
            pins=self._blocks.device.type == "cuda" and memory.num_host_blocks > 0,
        )

    @property
    def cache(self) -> KvCache:
        """The device's memory."""
        return self._cache

    @property
    def host_memory(self) -> HostMemory:
        """The host's memory as bytes."""
        blocks = self._host.blocks
        host_bytes = blocks.reshape(-1).view(torch.uint8)
        return HostMemory(
            host_bytes.numpy().data,
            host_bytes.numel() // max(1, blocks.shape[0]),
            self._host.handle,
        )

    def close(self) -> None:
        """Gives back what is held beside tensors."""
        self._host.close()

    def zero(self, block_ids: Sequence[BlockId] | Sequence[int]) -> None:
        """Makes blocks clean."""
        if block_ids:
            self._cache.clear(to_device(block_ids, torch.int64, self._blocks.device))

    def give_up(self, blocks: BlockRange) -> None:
        """Lets the memory of a CPU's blocks go, until they are written again. Raises: `OSError`."""
        assert self._blocks.device.type == "cpu", "a device's memory stays"
        gone = self._blocks[blocks.first : blocks.end]
        discard_pages(Span(gone.data_ptr(), gone.nbytes))

    def copy_out(self, moves: Sequence[BlockMove]) -> None:
        """Begins to copy blocks to the host; they are there once the device has come so far."""
        if not self._is_staged:
            for move in moves:
                self._host.blocks[move.host_id].copy_(self._blocks[move.block_id])
            return
        for host_ids, block_ids in self._cut(moves):
            self._host.put(host_ids, gather_blocks(self._blocks, block_ids))

    def move_out(self, moves: Sequence[BlockMove]) -> None:
        """Copies blocks to the host, where they are when this returns."""
        self.copy_out(moves)
        self._wait(moves)

    def move_in(self, moves: Sequence[BlockMove]) -> None:
        """Copies blocks back; nothing of them remains on the host."""
        if not self._is_staged:
            for move in moves:
                self._blocks[move.block_id].copy_(self._host.blocks[move.host_id])
                self._host.blocks[move.host_id].zero_()
            return
        for host_ids, block_ids in self._cut(moves):
            staged = torch.empty(
                (len(host_ids), *self._blocks.shape[1:]),
                dtype=self._blocks.dtype,
                device=self._blocks.device,
            )
            self._host.get(host_ids, staged)
            scatter_blocks(self._blocks, block_ids, staged)
        self._wait(moves)
        self._host.zero([move.host_id for move in moves])

    def _cut(self, moves: Sequence[BlockMove]) -> Iterator[tuple[list[int], Tensor]]:
        """Host ids in their order, and blocks on the device, of as much as is staged at once."""
        moves = sorted(moves, key=lambda move: move.host_id)
        block_bytes = self._blocks[:1].nbytes
        num_staged = max(1, _STAGED_BYTES // block_bytes)
        for first in range(0, len(moves), num_staged):
            part = moves[first : first + num_staged]
            block_ids = [move.block_id for move in part]
            yield (
                [move.host_id for move in part],
                to_device(block_ids, torch.int64, self._blocks.device),
            )

    def _wait(self, moves: Sequence[BlockMove]) -> None:
        """Returns when transfers between device and host have ended."""
        if moves and self._blocks.device.type == "cuda":
            torch.cuda.current_stream(self._blocks.device).synchronize()
