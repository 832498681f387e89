"""Checkpoints whose weights are packed into few bits: found by name, unpacked when they are read.

What `quantization_config` says chooses one of `formats`, each of which knows its names; the
arithmetic is in `unpacking` and `int_words`. What is read is a float tensor like any other, so
neither families nor the reader know of it. Read next: `formats.pieces`, then `reader`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from torch import Tensor

from gpu_pool.kernels.int4_groups import Int4Weight
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.formats.awq import read_awq
from gpu_pool.weights.formats.compressed_tensors import read_compressed
from gpu_pool.weights.formats.gptq import read_gptq
from gpu_pool.weights.formats.mxfp4 import find_mxfp4
from gpu_pool.weights.formats.pieces import FindPacked, TensorSource, convert_config, refuse
from gpu_pool.weights.formats.scaled import find_scaled, read_fp8

_UNPACKED_DTYPE: Final = "BF16"


class UnpackedSource:
    """A source in which packed tensors are float tensors."""

    def __init__(self, source: TensorSource, find_packed: FindPacked) -> None:
        """Looks at names and shapes; nothing is read yet.

        Raises: `CheckpointError` naming what does not fit, or is there twice.
        """
        self._source = source
        found = find_packed(source)
        self._packed = found.packed
        pieces = {piece for packed in self._packed.values() for piece in packed.pieces}
        if twice := sorted(self._packed.keys() & source.shapes.keys() - pieces):
            raise CheckpointError(f"The checkpoint holds `{twice[0]}` packed and as it is, too.")
        self._spare = found.spare
        self._hidden = pieces | found.unread

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        plain = {n: shape for n, shape in self._source.shapes.items() if n not in self._hidden}
        return plain | {name: packed.shape for name, packed in self._packed.items()}

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Every tensor's dtype by name."""
        plain = {n: dtype for n, dtype in self._source.dtypes.items() if n not in self._hidden}
        return plain | dict.fromkeys(self._packed, _UNPACKED_DTYPE)

    def leave_out_zeros(self, needed: Collection[str]) -> None:
        """Hides biases of nothing but zeros that are not needed: AutoGPTQ writes them for modules
        without a bias.
        """
        spare = [name for name in self._spare if name not in needed]
        self._hidden |= {name for name in spare if not self._source.read(name).any()}

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
        return self._packed[name].unpack(*self._read_pieces(name))

    def has_blocks(self, name: str, block_size: tuple[int, int]) -> bool:
        """True for a matrix in fp8 with a factor per block of that size."""
        return name in self._packed and self._packed[name].block_size == block_size

    def read_blocks(self, name: str) -> tuple[Tensor, Tensor]:
        """A matrix in fp8 as it is stored, and its factors."""
        weight, scales = self._read_pieces(name)
        return weight, scales

    def has_int4(self, name: str) -> bool:
        """True for a matrix of four bits a number, with a factor per group of neighbours."""
        return self.find_group_size(name) is not None

    def find_group_size(self, name: str) -> int | None:
        """Inputs that share a factor, of a matrix that `read_int4` has; None for other tensors."""
        return self._packed[name].group_size if name in self._packed else None

    def read_int4(self, name: str) -> Int4Weight:
        """A matrix of which `has_int4` is true, for the same numbers as `read` makes of it.

        Raises: `CheckpointError` naming it where its pieces turn out not to be what they seemed.
        """
        to_int4 = self._packed[name].to_int4
        assert to_int4 is not None
        return to_int4(*self._read_pieces(name))

    def read_rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows of a tensor; a packed one is unpacked whole."""
        if name not in self._packed:
            return self._source.read_rows(name, first, end)
        return self.read(name)[first:end].clone()

    def _read_pieces(self, name: str) -> list[Tensor]:
        """The pieces of a packed tensor, in order."""
        return [self._source.read(piece) for piece in self._packed[name].pieces]


class _MethodJson(msgspec.Struct, frozen=True):
    """The field of `quantization_config` that says what the others mean."""

    quant_method: str = ""


_METHODS: Final[dict[str, Callable[[Any], FindPacked]]] = {
    "mxfp4": lambda config: find_mxfp4,
    "fp8": read_fp8,
    "fbgemm_fp8": lambda config: find_scaled,
    "gptq": read_gptq,
    "awq": read_awq,
    "compressed-tensors": read_compressed,
}


def read_packing(quantization_config: Any) -> FindPacked:
    """What finds the packed tensors of a checkpoint with that `quantization_config`.

    Raises: `CheckpointError` naming the method or the field, and what is supported.
    """
    method = convert_config(quantization_config, _MethodJson).quant_method
    if method not in _METHODS:
        raise refuse(f"method `{method}` is not supported")
    return _METHODS[method](quantization_config)
