"""How a family says which checkpoint tensors make up its parameters.

Read next: `llama.names`, which lists them, and `gpu_pool.weights.reader`, which follows the list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from torch import Tensor

ReadParameter = Callable[[str], Tensor]
"""Hands out a parameter by the family's own name, fused and in the model's dtype."""


class Split(StrEnum):
    """How tensor parallelism divides a checkpoint tensor among ranks."""

    WHOLE = "whole"
    """Every rank has a copy."""
    ROWS = "rows"
    COLUMNS = "columns"
    FIRST = "first"
    """Rank 0 has it and the others zeros: what is added behind a sum over ranks."""


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    num_heads: int | None = None
    """Heads that its rows are and that more ranks than heads have copies of; None: no copies."""
    arrange: Callable[[Tensor], Tensor] | None = None
    """What brings a rank's share into the order that the model computes with; None: it is."""

    def find_share(self, split: Split, rank: int, num_ranks: int) -> range | None:
        """The rows or columns that a rank holds; None where the tensor is not divided.

        Raises: `ValueError` where it does not come out even.
        """
        if num_ranks == 1 or split in (Split.WHOLE, Split.FIRST):
            return None
        num_shares = min(num_ranks, self.num_heads or num_ranks)
        size = self.shape[0] if split is Split.ROWS else self.shape[-1]
        if size % num_shares or num_ranks % num_shares:
            raise ValueError(f"the {size} {split} of `{self.name}` do not divide by {num_ranks}")
        length, first = size // num_shares, rank * num_shares // num_ranks
        return range(first * length, (first + 1) * length)


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """A parameter: the checkpoint tensors whose rows, one below the other, are it."""

    parts: tuple[CheckpointTensor, ...]
    split: Split
    is_product: bool = False
    """Rows are only multiplied with, as they are stored: fp8 blocks may stay what they are."""


def list_held(sources: Mapping[str, ParameterSource]) -> dict[str, ParameterSource]:
    """The parameters that take memory: what is made of the same tensors as one before is the same
    memory, as a head is that is tied to the embedding.
    """
    by_parts: dict[tuple[CheckpointTensor, ...], str] = {}
    for name, source in sources.items():
        by_parts.setdefault(source.parts, name)
    return {name: sources[name] for name in by_parts.values()}


def count_parameters(sources: Mapping[str, ParameterSource], num_ranks: int = 1) -> int:
    """The numbers in all parameters together, as each of `num_ranks` holds them."""
    return sum(
        count_share(part, source.split, num_ranks)
        for source in sources.values()
        for part in source.parts
    )


def count_share(tensor: CheckpointTensor, split: Split, num_ranks: int) -> int:
    """The numbers of a tensor that each of `num_ranks` holds."""
    share = tensor.find_share(split, 0, num_ranks)
    if share is None:
        return prod(tensor.shape)
    size = tensor.shape[0] if split is Split.ROWS else tensor.shape[-1]
    return prod(tensor.shape) // size * len(share)
