"""Weights of four bits, with a factor and a zero per group of inputs, as GPTQ and AWQ have them.

A number n of a group with factor s and zero z stands for (n - z) · s. Shapes: M outputs, K inputs,
G groups of K / G inputs each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix of four bits a number."""

    numbers: Tensor
    """`[M, K / 2]` in uint8: two neighbouring inputs a byte, the first in the low half."""
    scales: Tensor
    """`[M, G]` in fp32."""
    zeros: Tensor
    """`[M, G]` in uint8, 0 to 16: what stands for zero; 8 where nothing else is stored."""

    @property
    def shape(self) -> tuple[int, int]:
        """`(M, K)`."""
        return self.numbers.shape[0], 2 * self.numbers.shape[1]

    @property
    def group_size(self) -> int:
        """Inputs that share a factor."""
        return self.shape[1] // self.scales.shape[1]

    def unflatten(self, dim: int, sizes: tuple[int, int]) -> "Int4Weights":
        """Rows that stand below each other as matrices of their own."""
        return Int4Weights(
            *[part.unflatten(dim, sizes) for part in (self.numbers, self.scales, self.zeros)]
        )


@dataclass(frozen=True, slots=True)
class Int4Weights:
    """Experts' matrices, `[E, …]` of what one has."""

    numbers: Tensor
    scales: Tensor
    zeros: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(E, M, K)`."""
        num_experts, num_outputs, num_bytes = self.numbers.shape
        return num_experts, num_outputs, 2 * num_bytes

    def __getitem__(self, index: int) -> Int4Weight:
        """One of them."""
        return Int4Weight(self.numbers[index], self.scales[index], self.zeros[index])


def widen_int4(weight: Int4Weight) -> Tensor:
    """The numbers `[M, K]` in fp32, in plain torch."""
    halves = torch.stack((weight.numbers & 0x0F, weight.numbers >> 4), -1).flatten(1)
    groups = halves.float().unflatten(1, (-1, weight.group_size))
    groups.sub_(weight.zeros.float()[..., None]).mul_(weight.scales[..., None])
    return groups.flatten(1)
