"""Weights in fp8 with a factor per block of 128 × 128, as DeepSeek and Qwen publish them.

They stay as they are stored: kernels widen them in registers and multiply each block's product by
its factor. GPUs from sm_89 on widen by an instruction; older ones by shifting the bits to where
fp32 has them, exactly: e4m3's exponent is offset by 7, fp32's by 127, so 2^120 is missing.
Shapes: M outputs, K inputs, each with a factor per 128 begun. Source: DeepSeek-V3, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.gpu_traits import GpuTraits
from gpu_pool.kernels.triton_language import jit, tl

BLOCK: Final = 128
FP8: Final = torch.float8_e4m3fn
_FIRST_WITH_FP8: Final = 89


@dataclass(frozen=True, slots=True)
class BlockScaledWeight:
    """A matrix, or experts' matrices one behind the other, in fp8 with their factors."""

    weight: Tensor
    """`[…, M, K]` in e4m3."""
    scales: Tensor
    """`[…, ⌈M / 128⌉, ⌈K / 128⌉]` in fp32."""

    @property
    def bits(self) -> Tensor:
        """The weight's bytes, which every kernel can load."""
        return self.weight.view(torch.uint8)

    @property
    def shape(self) -> torch.Size:
        """The weight's."""
        return self.weight.shape

    def unflatten(self, dim: int, sizes: tuple[int, int]) -> BlockScaledWeight:
        """Rows that stand below each other as matrices of their own, of whole blocks each."""
        return BlockScaledWeight(
            self.weight.unflatten(dim, sizes), self.scales.unflatten(dim, sizes)
        )

    def __getitem__(self, index: int) -> BlockScaledWeight:
        """One of several matrices."""
        return BlockScaledWeight(self.weight[index], self.scales[index])


def has_fp8(traits: GpuTraits) -> bool:
    """True where the GPU itself converts and multiplies fp8."""
    return traits.capability >= _FIRST_WITH_FP8


def widen_blocks_reference(weight: BlockScaledWeight) -> Tensor:
    """The numbers `[…, M, K]` in fp32, in plain torch."""
    num_outputs, num_inputs = weight.weight.shape[-2:]
    factors = weight.scales.repeat_interleave(BLOCK, -2)[..., :num_outputs, :]
    return weight.weight.float() * factors.repeat_interleave(BLOCK, -1)[..., :num_inputs]


@jit
def widen_e4m3(bits, HAS_FP8: tl.constexpr, DTYPE: tl.constexpr):
    """Bytes of e4m3 as numbers; the pattern of NaN, which no weight is, may become 480."""
    if HAS_FP8:
        numbers = bits.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        wide = bits.to(tl.int32)
        moved = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
        numbers = moved.to(tl.float32, bitcast=True) * 1.329227995784916e36
    return numbers.to(DTYPE)
