"""Matrices that layers multiply with, in the form in which they were kept.

Read next: `gpu_pool.weights.block_reader` and `gpu_pool.weights.int4_reader`, which keep some.
"""

from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.fp8_blocks import FP8, BlockScaledWeight
from gpu_pool.kernels.int4_groups import Int4Weight
from gpu_pool.models.parameters import ReadParameter

SCALES: Final = "_scales"
"""Ends the name of what a kept matrix is multiplied by."""
ZEROS: Final = "_zeros"


def read_product(read: ReadParameter, name: str) -> Tensor | BlockScaledWeight | Int4Weight:
    """A matrix; where it has stayed in fp8 or four bits, with what is called after it."""
    weight = read(name)
    if weight.dtype == FP8:
        return BlockScaledWeight(weight, read(f"{name}{SCALES}"))
    if weight.dtype == torch.uint8:
        return Int4Weight(weight, read(f"{name}{SCALES}"), read(f"{name}{ZEROS}"))
    return weight
