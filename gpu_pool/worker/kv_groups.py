"""How KV memory is divided among groups of layers.

Layers with a window or chunks hold a ring of each sequence only, so they get fewer blocks: as many
as sequences of a usual length need beside those that keep everything. Read next: `kv_memory`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from contracts.settings import SettingsError
from gpu_pool.attention.kv_cache import CreateZeros, KvCache, KvShape
from gpu_pool.attention.reach import Reach
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.models.network import KvLayers
from gpu_pool.parallel.ranks import SOLE_RANK, Ranks
from gpu_pool.plan import KvGroup, KvSlabs
from gpu_pool.runner.group_blocks import KvGroupMemory
from gpu_pool.worker.kv_memory import count_blocks, shape_kv
from gpu_pool.worker.kv_slabs import cut_slabs
from gpu_pool.worker.settings import WorkerSettings

_USUAL_TOKENS: Final = 8192
"""Length of a sequence for which all groups have equally much room."""
_STEP_TOKENS: Final = 2048
"""What a step may add to a ring before old blocks leave it."""
_LEAST_STEP_TOKENS: Final = 256
"""What a step may add at least, however small the memory is."""


@dataclass(frozen=True, slots=True)
class KvDivision:
    """The shapes of all groups and how much of each there is."""

    shapes: tuple[KvShape, ...]
    reaches: tuple[Reach, ...]
    dtype: torch.dtype
    is_even: bool = False
    """All groups get the same number of blocks, whatever they keep."""
    num_spare: int = 0
    """Blocks of each group beside those, which are no sequence's."""
    own_bytes: int | None = None
    """What is always there; the rest comes and goes. None: all is always there."""

    @property
    def stored_dtype(self) -> str:
        """What blocks are made of, as others are told: those of two kinds never mix."""
        is_fp8 = any(shape.is_fp8 for shape in self.shapes)
        return "fp8_e4m3" if is_fp8 else str(self.dtype).removeprefix("torch.")

    @property
    def block_bytes(self) -> int:
        """What one block of a group that keeps everything takes, with its part of the others."""
        sizes = zip(self.shapes, self.reaches, strict=True)
        return sum(
            -(-shape.block_bytes(self.dtype) * _weigh(reach) // _USUAL_TOKENS)
            for shape, reach in sizes
        )

    def bound_bytes(self, num_blocks: int) -> int:
        """What all groups take at most where groups that keep everything have `num_blocks`."""
        each = sum(shape.block_bytes(self.dtype) for shape in self.shapes)
        return (num_blocks + self.num_spare) * each

    def count_all(
        self,
        settings: WorkerSettings,
        device: torch.device,
        weights_bytes: int,
        *,
        is_measured: bool = False,
    ) -> int:
        """Blocks of groups that keep everything, before weights of that size are loaded.

        `is_measured` where what steps need is taken off later.

        Raises: `SettingsError` when there is room for none.
        """
        return count_blocks(
            settings, self.block_bytes, device, weights_bytes, is_measured=is_measured
        )

    def count_own(self, num_blocks: int) -> int:
        """Blocks of groups that keep everything which are always there, of `num_blocks`.

        Raises: `SettingsError` when there is none.
        """
        if self.own_bytes is None:
            return num_blocks
        num_own = min(num_blocks, self.own_bytes // self.block_bytes)
        if num_own < 1:
            raise SettingsError(
                f"A block of KV memory takes {self.block_bytes} bytes. Raise `kv_least_bytes`."
            )
        return num_own

    def measure_own(self, groups: Sequence[KvGroup]) -> int | None:
        """Bytes of the groups that are always there; None: all."""
        if self.own_bytes is None:
            return None
        return sum(
            group.block_bytes * group.slabs.blocks_each * group.slabs.num_own
            for group in groups
            if group.slabs is not None
        )

    def cut(self, place: int, num_blocks: int) -> tuple[KvSlabs | None, int]:
        """The slabs of a group where those that keep everything have `num_blocks`, and all blocks
        of it.
        """
        count = self.count_blocks(place, num_blocks)
        if self.own_bytes is None:
            return None, count
        num_own = self.count_blocks(place, self.count_own(num_blocks))
        return cut_slabs(self.shapes[place].block_bytes(self.dtype), count, num_own)

    def count_blocks(self, place: int, num_blocks: int) -> int:
        """Blocks of one group where groups that keep everything have `num_blocks`."""
        reach, size = self.reaches[place], self.shapes[place].block_size
        if reach.num_tokens is None or self.is_even:
            return num_blocks
        least = -(-(reach.num_tokens + _LEAST_STEP_TOKENS) // size) + 1
        share = -(-num_blocks * _weigh(reach) // _USUAL_TOKENS)
        return min(num_blocks, max(least, share))

    def create_groups(
        self,
        num_blocks: int,
        settings: WorkerSettings,
        create_zeros: CreateZeros,
        kernels: NativeKernels | None,
        ranks: Ranks = SOLE_RANK,
    ) -> list[KvGroupMemory]:
        """The memory of all groups, zeros; of host memory all ranks have equally many blocks."""
        num_host_blocks = settings.swap_bytes // sum(s.block_bytes(self.dtype) for s in self.shapes)
        num_staging = -(-settings.staging_tokens // settings.block_size)
        num_host_blocks += 2 * num_staging  # one account's fetches have half of all
        num_host_blocks = ranks.agree_on_least(num_host_blocks)
        groups: list[KvGroupMemory] = []
        for place, shape in enumerate(self.shapes):
            slabs, count = self.cut(place, num_blocks)
            cache = KvCache(
                shape,
                count,
                self.dtype,
                kernels=kernels,
                create_zeros=create_zeros,
                num_spare=self.num_spare,
            )
            groups.append(KvGroupMemory(cache, self.reaches[place], num_host_blocks, slabs))
        return groups

    def describe(self, groups: Sequence[KvGroupMemory]) -> tuple[KvGroup, ...]:
        """What the engine is told of the groups."""
        return tuple(
            KvGroup(
                group.reach.kind,
                group.cache.shape.num_layers,
                group.cache.shape.block_bytes(self.dtype),
                group.reach.num_tokens,
                group.cache.num_blocks,
                group.num_host_blocks,
                group.slabs,
            )
            for group in groups
        )


def divide_kv(
    layers: Sequence[KvLayers], settings: WorkerSettings, dtype: torch.dtype, num_spare: int = 0
) -> KvDivision:
    """How the KV memory of a network is divided; a number of blocks in `settings` is each group's.

    Raises: `SettingsError` when blocks of that size do not fill padded contexts.
    """
    shapes = tuple([shape_kv(group, settings) for group in layers])
    reaches = tuple([group.reach for group in layers])
    is_even = settings.num_blocks is not None
    return KvDivision(shapes, reaches, dtype, is_even, num_spare, settings.kv_least_bytes)


def _weigh(reach: Reach) -> int:
    """Tokens that a sequence of `_USUAL_TOKENS` keeps in a group."""
    if reach.num_tokens is None:
        return _USUAL_TOKENS
    return min(_USUAL_TOKENS, reach.num_tokens + _STEP_TOKENS)
