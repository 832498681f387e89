"""The arithmetic of packed weights: few bits and factors in, fp32 out.

Runs once, when a model is loaded. Source: OCP Microscaling formats 1.0 (MXFP4); DeepSeek-V3 (fp8
with a factor per block); compressed-tensors' pack-quantized format (int4).
"""

from typing import Final

import torch
from torch import Tensor

from gpu_pool.models.errors import CheckpointError

INT4_PER_WORD: Final = 8
_INT4_OFFSET: Final = 8
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
    factors = scales.float().repeat_interleave(block_size[0], 0)[:rows]
    return weight.float() * factors.repeat_interleave(block_size[1], 1)[:, :columns]


def unpack_int4_groups(packed: Tensor, scales: Tensor, shape: Tensor) -> Tensor:
    """A matrix of eight numbers a word, lowest bits first, less 8, times the factor of their group.

    Raises: `CheckpointError` when `shape` is another than the words hold.
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    numbers = ((packed[..., None] >> shifts) & 0x0F).flatten(1).float() - _INT4_OFFSET
    if shape.tolist() != list(numbers.shape):
        raise CheckpointError(f"Packed weights of shape {shape.tolist()} are not supported.")
    group_size = numbers.shape[1] // scales.shape[1]
    return numbers * scales.float().repeat_interleave(group_size, 1)
