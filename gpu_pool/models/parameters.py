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
    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """A parameter: the checkpoint tensors whose rows, one below the other, are it."""

    parts: tuple[CheckpointTensor, ...]
    split: Split


def count_parameters(sources: Mapping[str, ParameterSource]) -> int:
    """The numbers in all parameters together."""
    return sum(prod(part.shape) for source in sources.values() for part in source.parts)
