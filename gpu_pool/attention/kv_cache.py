"""The KV memory of one group of layers.

Block-major: `[P, layers, S, 2, K, H]`, so that a block with all its layers is one contiguous piece
and hence one transfer. Inside a layer's part a token's keys and values lie side by side: a step
writes one row per token and layer, and one gather per layer brings both. Where values are a part of
the keys (latent attention) the 2 is a 1. In eight bits a token's scales stand behind its elements,
and memory is bytes: `[P, layers, S, bytes of a slot]`.
Shapes: P blocks, S block size, K KV heads, H head dim. Must not know who owns a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.device_values import send
from gpu_pool.kernels.fp8_slots import Fp8Slots
from gpu_pool.kernels.fp8_write import fp8_write
from gpu_pool.kernels.kv_write import kv_write

Int64Array = npt.NDArray[np.int64]
CreateZeros = Callable[[Sequence[int], torch.dtype], Tensor]
"""Memory of a shape, in the place that its maker has for it."""
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class KvShape:
    """Sizes of a group's KV memory, all but the number of blocks. `block_size` in tokens."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    num_parts: int = 2
    """2 for keys and values, 1 where the values are a part of the keys."""
    is_fp8: bool = False
    """Elements are e4m3 with a scale for each head and part, whatever the model computes in."""

    @property
    def slot_elements(self) -> int:
        """Elements that one token takes in one layer."""
        return self.num_parts * self.num_kv_heads * self.head_dim

    @property
    def fp8(self) -> Fp8Slots | None:
        """How slots of eight bits an element are made; None: they hold elements alone."""
        if not self.is_fp8:
            return None
        return Fp8Slots(self.slot_elements, self.num_parts * self.num_kv_heads)

    def slot_bytes(self, dtype: torch.dtype) -> int:
        """Bytes that one token takes in one layer, of a model that computes in `dtype`."""
        return self.slot_elements * dtype.itemsize if self.fp8 is None else self.fp8.num_bytes

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one block, all layers."""
        return self.num_layers * self.block_size * self.slot_bytes(dtype)


class KvCache:
    """The tensor itself and the two views that kernels index.

    Invariant: never holds garbage. A masked product with NaN is NaN, so memory starts as zeros and
    a block is zeroed when it changes hands (`clear`) unless it is overwritten whole.
    """

    def __init__(
        self,
        shape: KvShape,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device = _CPU,
        kernels: NativeKernels | None = None,
        create_zeros: CreateZeros | None = None,
        num_spare: int = 0,
    ) -> None:
        """Zeros, made on `device` or by `create_zeros`; a CPU takes pages at the first write.

        `kernels` are what attends to a CPU's memory, not of eight bits; None: torch. `num_spare`
        blocks lie behind the others and are no sequence's.
        """
        self.shape = shape
        self.dtype = dtype
        """What is attended in, whatever memory is made of."""
        self.kernels = None if shape.is_fp8 else kernels
        create_zeros = create_zeros or partial(_create_zeros, device)
        self.num_blocks = num_blocks
        """All blocks that sequences may have."""
        sizes = (num_blocks + num_spare, shape.num_layers, shape.block_size)
        if shape.fp8 is None:
            heads = (shape.num_parts, shape.num_kv_heads, shape.head_dim)
            self.blocks = create_zeros((*sizes, *heads), dtype)
        else:
            self.blocks = create_zeros((*sizes, shape.fp8.num_bytes), torch.uint8)
        slot_size = shape.slot_bytes(dtype) // self.blocks.itemsize
        self.slots_XE = self.blocks.view(-1, slot_size)
        """A row per token and layer."""
        self.rows_XE = self.blocks.view(-1, shape.block_size * slot_size)
        """A row per block and layer."""
        self._layers = np.arange(shape.num_layers)

    def write(self, slot_ids_T: Tensor, kv_TE: Tensor) -> None:
        """Puts a step's keys and values into their slots."""
        if self.shape.fp8 is None:
            kv_write(self.slots_XE, slot_ids_T, kv_TE)
        else:
            fp8_write(self.slots_XE, slot_ids_T, kv_TE, self.shape.fp8)

    def clear(self, block_ids: Tensor) -> None:
        """Zeroes whole blocks."""
        self.blocks.index_fill_(0, block_ids, 0)

    def to_row_ids(self, block_ids: Int64Array) -> Tensor:
        """Ids into `rows_XE` on the device, a leading dimension of layers added."""
        return self._add_layers(block_ids * self.shape.num_layers, 1)

    def to_slot_ids(self, block_ids: Int64Array, offsets: Int64Array) -> Tensor:
        """Ids into `slots_XE` of tokens at `offsets` in their blocks, layers leading."""
        size = self.shape.block_size
        return self._add_layers(block_ids * (self.shape.num_layers * size) + offsets, size)

    def _add_layers(self, ids: Int64Array, stride: int) -> Tensor:
        """`ids` for each layer, `stride` apart."""
        steps = (self._layers * stride).reshape(-1, *[1] * ids.ndim)
        return send(torch.from_numpy(steps + ids), self.blocks.device)


def _create_zeros(device: torch.device, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros where torch puts them."""
    return torch.zeros(tuple(shape), dtype=dtype, device=device)
