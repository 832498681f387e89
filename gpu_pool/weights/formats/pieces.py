"""What all ways of packing share: where tensors come from, and what a packed one is made of.

Must not know a format. Read next: `compressed_tensors`, which has most of what there is.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec
from torch import Tensor

from gpu_pool.kernels.int4_groups import Int4Weight
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.formats.name_pattern import read_pattern
from gpu_pool.weights.formats.targets import PATTERN

FLOATS: Final = frozenset({"F16", "BF16", "F32"})
WORDS: Final = frozenset({"I32"})
BYTES: Final = frozenset({"U8"})
FP8: Final = frozenset({"F8_E4M3"})
WORD_BITS: Final = 32
_SHOWN: Final = 80
"""Characters of a pattern in what is said of it."""
SUPPORTED: Final = (
    "Supported are mxfp4, fp8 (with a weight_block_size, or a factor per tensor), fbgemm_fp8, gptq "
    "of 4 or 8 bits, awq of 4 bits (gemm), and compressed-tensors with whole numbers of 4 or 8 "
    "bits per group or channel (pack-quantized), symmetric int8 per channel or tensor "
    "(int-quantized), or fp8 per channel, tensor or block (float-quantized)."
)
StructT = TypeVar("StructT", bound=msgspec.Struct)


class TensorSource(Protocol):
    """Tensors by name: a checkpoint, or one with its packed weights unpacked."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        ...

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Every tensor's dtype by name, in safetensors' words."""
        ...

    def expect(self, names: Iterable[str]) -> None:
        """Says what will be read whole, in order."""
        ...

    def expect_rows(self, name: str, first: int, end: int) -> None:
        """Says that rows will be read, as `expect` does of whole tensors."""
        ...

    def read(self, name: str) -> Tensor:
        """A tensor by name, on CPU, that nobody else has."""
        ...

    def read_rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows of a tensor, as `read` hands out the whole."""
        ...


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A float tensor that a checkpoint holds in pieces, and how they are put together."""

    shape: tuple[int, ...]
    pieces: tuple[str, ...]
    unpack: Callable[..., Tensor]
    """Takes the pieces in order."""
    block_size: tuple[int, int] | None = None
    """Where the pieces are a matrix in fp8 and its factors: rows and columns that share one."""
    to_int4: Callable[..., Int4Weight] | None = None
    """Takes the pieces in order, too; None where they are no numbers of four bits in groups."""
    group_size: int | None = None
    """Inputs that share a factor, where there is `to_int4`."""


@dataclass(frozen=True, slots=True)
class FoundTensors:
    """What of a checkpoint is no plain weight."""

    packed: Mapping[str, PackedTensor]
    """By the name of what they stand for."""
    unread: frozenset[str] = frozenset()
    """What only matters to who computes with activations of few bits."""
    spare: frozenset[str] = frozenset()
    """Biases that writers make of zeros for modules that have none."""


FindPacked = Callable[[TensorSource], FoundTensors]
"""Looks at names, shapes and dtypes; reads nothing."""


class TensorHeaders:
    """Every tensor's shape and dtype, and the questions that formats ask of them."""

    def __init__(self, source: TensorSource) -> None:
        """Asks the source once."""
        self.shapes = source.shapes
        self._dtypes = source.dtypes

    def require(self, name: str, shape: tuple[int, ...], dtypes: Collection[str]) -> None:
        """Raises: `CheckpointError` when a piece is missing, or of another shape or dtype."""
        if self.shapes.get(name) != shape:
            raise CheckpointError(f"The checkpoint lacks `{name}` of shape {list(shape)}.")
        if self._dtypes[name] not in dtypes:
            wanted = " or ".join(sorted(dtypes))
            raise CheckpointError(
                f"Tensor `{name}` is {self._dtypes[name]}; a piece of a packed weight like it has "
                f"to be {wanted}."
            )

    def require_groups(self, name: str, num_inputs: int, group_size: int | None) -> int:
        """The inputs that share a factor; None: all do.

        Raises: `CheckpointError` naming the weight whose inputs are no whole number of groups.
        """
        size = num_inputs if group_size is None else group_size
        if not num_inputs or num_inputs % size:
            raise CheckpointError(
                f"The {num_inputs} inputs of `{name}` are no whole number of groups of {size}."
            )
        return size


def refuse(reason: str) -> CheckpointError:
    """What is raised for a `quantization_config` that is not supported."""
    return CheckpointError(f"config.json: quantization_config: {reason}. {SUPPORTED}")


def convert_config(config: Any, kind: type[StructT]) -> StructT:
    """The fields that matter. Raises: `CheckpointError` for one of another type."""
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"config.json: quantization_config: {error}.") from error


def read_group_size(group_size: int) -> int | None:
    """Inputs of a group; None for -1, which stands for all. Raises: `CheckpointError`."""
    if group_size != -1 and group_size < 1:
        raise refuse(f"group_size {group_size} is none")
    return None if group_size == -1 else group_size


def require_pattern(target: str) -> None:
    """Raises: `CheckpointError` for an expression behind `re:` that is none or takes too many
    steps, or that is nested or counts farther than can be read.
    """
    if not target.startswith(PATTERN):
        return
    try:
        read_pattern(target.removeprefix(PATTERN)).matches("")
    except (re.error, OverflowError, RecursionError) as error:
        shown = target if len(target) <= _SHOWN else f"{target[:_SHOWN]}…"
        raise CheckpointError(
            f"config.json: quantization_config: `{shown}` is no pattern: {error}."
        ) from error
