"""Checkpoints whose weights are packed into few bits: found by name, unpacked when they are read.

Owns which of a checkpoint's tensors are pieces of a packed one and what `quantization_config` says;
the arithmetic is in `unpacking`. What is read is a float tensor like any other, so neither families
nor the reader know of it. Read next: `unpacking`, then `reader`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from torch import Tensor

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.unpacking import (
    INT4_PER_WORD,
    unpack_block_fp8,
    unpack_int4_groups,
    unpack_mxfp4,
)

_UNPACKED_DTYPE: Final = "BF16"
_MXFP4_PER_BYTE: Final = 2


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


FindPacked = Callable[[TensorSource], dict[str, PackedTensor]]
"""The packed tensors of a checkpoint, by the name of what they stand for."""


class UnpackedSource:
    """A source in which packed tensors are float tensors."""

    def __init__(self, source: TensorSource, find_packed: FindPacked) -> None:
        """Looks at names and shapes; nothing is read yet."""
        self._source = source
        self._packed = find_packed(source)
        self._pieces = {piece for packed in self._packed.values() for piece in packed.pieces}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        plain = {n: shape for n, shape in self._source.shapes.items() if n not in self._pieces}
        return plain | {name: packed.shape for name, packed in self._packed.items()}

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Every tensor's dtype by name."""
        plain = {n: dtype for n, dtype in self._source.dtypes.items() if n not in self._pieces}
        return plain | dict.fromkeys(self._packed, _UNPACKED_DTYPE)

    def expect(self, names: Iterable[str]) -> None:
        """Says what will be read, in order: the pieces of packed tensors."""
        self._source.expect(
            piece
            for name in names
            for piece in (self._packed[name].pieces if name in self._packed else (name,))
        )

    def expect_rows(self, name: str, first: int, end: int) -> None:
        """Says that rows will be read; of a packed tensor the whole is."""
        if name in self._packed:
            self.expect([name])
        else:
            self._source.expect_rows(name, first, end)

    def read(self, name: str) -> Tensor:
        """A tensor by name, on CPU, unpacked to fp32 where it was packed."""
        if name not in self._packed:
            return self._source.read(name)
        packed = self._packed[name]
        return packed.unpack(*[self._source.read(piece) for piece in packed.pieces])

    def has_blocks(self, name: str, block_size: tuple[int, int]) -> bool:
        """True for a matrix in fp8 with a factor per block of that size."""
        return name in self._packed and self._packed[name].block_size == block_size

    def read_blocks(self, name: str) -> tuple[Tensor, Tensor]:
        """A matrix in fp8 as it is stored, and its factors."""
        weight, scales = [self._source.read(piece) for piece in self._packed[name].pieces]
        return weight, scales

    def read_rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows of a tensor; a packed one is unpacked whole."""
        if name not in self._packed:
            return self._source.read_rows(name, first, end)
        return self.read(name)[first:end].clone()


class _WeightsJson(msgspec.Struct, frozen=True):
    """How a group of compressed-tensors packs its weights."""

    num_bits: int = 0
    type: str = ""
    symmetric: bool = True
    strategy: str = ""
    group_size: int | None = None


class _GroupJson(msgspec.Struct, frozen=True):
    """A group of compressed-tensors."""

    weights: _WeightsJson | None = None


class _PackingJson(msgspec.Struct, frozen=True):
    """The fields of `quantization_config` that matter."""

    quant_method: str = ""
    weight_block_size: tuple[int, int] | None = None
    format: str | None = None
    config_groups: dict[str, _GroupJson] | None = None


def read_packing(quantization_config: Any) -> FindPacked:
    """What finds the packed tensors of a checkpoint with that `quantization_config`.

    Raises: `CheckpointError` naming the method, and those that are supported.
    """
    try:
        json = msgspec.convert(quantization_config, _PackingJson)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"config.json: quantization_config: {error}.") from error
    match json.quant_method:
        case "mxfp4":
            return find_mxfp4
        case "fp8" if json.weight_block_size is not None and min(json.weight_block_size) > 0:
            return partial(find_block_fp8, block_size=json.weight_block_size)
        case "compressed-tensors" if json.format == "pack-quantized" and _is_int4(json):
            return find_int4_groups
        case method:
            raise CheckpointError(
                f"config.json has a quantization_config of method `{method}` that is not "
                "supported. Supported are mxfp4, fp8 with a weight_block_size, and "
                "compressed-tensors with symmetric int4 weights in groups (pack-quantized)."
            )


def _is_int4(json: _PackingJson) -> bool:
    """True when every group packs symmetric whole numbers of four bits, scaled in groups."""
    weights = [group.weights for group in (json.config_groups or {}).values()]
    return bool(weights) and all(
        w is not None and (w.num_bits, w.type, w.symmetric, w.strategy) == (4, "int", True, "group")
        for w in weights
    )


def find_mxfp4(source: TensorSource) -> dict[str, PackedTensor]:
    """Tensors held as `…_blocks` and `…_scales`; rows are outputs there and columns here."""
    found: dict[str, PackedTensor] = {}
    for name, shape in source.shapes.items():
        stem = name.removesuffix("_blocks")
        if stem != name and len(shape) == 4:
            num_inputs = shape[2] * shape[3] * _MXFP4_PER_BYTE
            _require_piece(source, f"{stem}_scales", shape[:3])
            pieces = (name, f"{stem}_scales")
            found[stem] = PackedTensor((shape[0], num_inputs, shape[1]), pieces, unpack_mxfp4)
    return found


def find_block_fp8(source: TensorSource, block_size: tuple[int, int]) -> dict[str, PackedTensor]:
    """Matrices with a `…_scale_inv` beside them, which has a factor per block."""
    found: dict[str, PackedTensor] = {}
    for name, shape in source.shapes.items():
        scales = f"{name}_scale_inv"
        if scales in source.shapes and len(shape) == 2:
            counts = (-(-shape[0] // block_size[0]), -(-shape[1] // block_size[1]))
            _require_piece(source, scales, counts)
            unpack = partial(unpack_block_fp8, block_size=block_size)
            found[name] = PackedTensor(shape, (name, scales), unpack, block_size)
    return found


def find_int4_groups(source: TensorSource) -> dict[str, PackedTensor]:
    """Matrices held as `…_packed`, `…_scale` and `…_shape`."""
    found: dict[str, PackedTensor] = {}
    for name, shape in source.shapes.items():
        stem = name.removesuffix("_packed")
        if stem != name and len(shape) == 2:
            whole = (shape[0], shape[1] * INT4_PER_WORD)
            scale_shape = source.shapes.get(f"{stem}_scale", (0, 0))
            is_even = len(scale_shape) == 2 and scale_shape[1] and not whole[1] % scale_shape[1]
            if scale_shape[0] != shape[0] or not is_even:
                raise CheckpointError(f"`{stem}_scale` does not fit `{name}`.")
            _require_piece(source, f"{stem}_shape", (2,))
            pieces = (name, f"{stem}_scale", f"{stem}_shape")
            found[stem] = PackedTensor(whole, pieces, unpack_int4_groups)
    return found


def _require_piece(source: TensorSource, name: str, shape: tuple[int, ...]) -> None:
    """Raises when a piece is missing or of another shape."""
    if source.shapes.get(name) != shape:
        raise CheckpointError(f"The checkpoint lacks `{name}` of shape {list(shape)}.")
