"""The arithmetic of packed weights: few bits and factors in, fp32 out.

Runs once, when a model is loaded. Source: OCP Microscaling formats 1.0 (MXFP4); DeepSeek-V3 (fp8
with a factor per block). Whole numbers in words are in `int_words`.
"""

from typing import Final

import torch
from torch import Tensor

_FP4_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_BIAS: Final = 127


def unpack_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Experts `[E, inputs, outputs]`; blocks are `[E, outputs, B, bytes]`, scales lack the bytes.

    Two numbers a byte, the low half first; the factor of a block is a power of two.
    """
    magnitudes = torch.tensor(_FP4_MAGNITUDES)
    values = torch.cat((magnitudes, -magnitudes))
    halves = torch.stack((blocks & 0x0F, blocks >> 4), -1).flatten(-2)
    exponents = scales.to(torch.int32)[..., None] - _E8M0_BIAS
    whole = torch.ldexp(values[halves.long()], exponents)
    return whole.flatten(-2).transpose(1, 2)


def unpack_block_fp8(weight: Tensor, scales: Tensor, block_size: tuple[int, int]) -> Tensor:
    """A matrix whose blocks are each multiplied by their factor."""
    rows, columns = weight.shape
    height, width = min(block_size[0], rows), min(block_size[1], columns)
    factors = scales.float().repeat_interleave(height, 0)[:rows]
    return weight.float() * factors.repeat_interleave(width, 1)[:, :columns]


def unpack_rows(weight: Tensor, scales: Tensor) -> Tensor:
    """A matrix times its factor, or its rows times theirs."""
    return weight.float() * scales.float().reshape(-1, 1)
