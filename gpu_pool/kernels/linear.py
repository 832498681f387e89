"""Product with a weight matrix: y = x · Wᵀ + b.

On a CPU weights in bf16 or of four bits go to the kernels of `gpu_pool.kernels.cpu` where the
loader has said so (`packing_with`), in a form that only these read.
Elsewhere on a CPU with oneDNN the weight is packed once into the layout its kernels read: 1.3 to
2.2 times faster on few rows, and each row's result is independent of how many rows there are,
except that one row alone takes a matrix-vector path which adds in another order. In fp32 that
shows, so one row is computed as two; in bf16 the paths agree after rounding.
For every row count it meets oneDNN compiles a kernel and keeps 0.8 to 1.6 MB, so it meets few:
products are cut into pieces of those counts, and the last piece is filled up.
On a GPU cuBLAS multiplies, and few rows go to `small_linear` where that was measured to be faster;
weights that have stayed in fp8 go to `block_linear`.
Shapes: T tokens, K inputs, M outputs. Takes bf16 or fp32, fp32 accumulation.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.block_linear import block_linear
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.fp8_blocks import BlockScaledWeight
from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.int4_groups import Int4Weight
from gpu_pool.kernels.small_linear import MAX_ROWS, small_linear
from gpu_pool.kernels.small_linear_table import SMALL_LINEAR
from gpu_pool.kernels.triton_language import uses_triton

PackNatively = Callable[[Tensor | Int4Weight], Tensor]
"""What hands out a weight `[M, K]` in the form of our own kernels."""
_NATIVE_DEVICES: Final = ("cpu", "meta")
"""A weight without content is for who has it packed already."""
_PACKING: Final[ContextVar["_Packing | None"]] = ContextVar("packing", default=None)
_PACKING_HINT_ROWS: Final = 64
"""Row count oneDNN is told when it picks a layout; every count then works with that layout."""
_ROW_COUNTS: Final = (*range(1, 17), 20, 24, 28, 32, 48, 64, 96, 128, 192, 256)
_WHOLE_ROWS: Final = 32
"""So many are one piece, for each piece reads the weight again."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in oneDNN's own layout; the plain one is gone. Shape before packing: `[M, K]`."""

    packed: Tensor
    num_outputs: int
    num_inputs: int
    doubles_single_row: bool


@dataclass(frozen=True, slots=True)
class NativeWeight:
    """A weight in the form of our own kernels; the plain one is gone. Shape: `[M, K]`."""

    kernels: NativeKernels
    packed: Tensor
    num_outputs: int
    num_inputs: int
    group_size: int = 0
    """Inputs that share a factor, in a weight of four bits; 0: it is in bf16."""


Weight = Tensor | PackedWeight | NativeWeight | BlockScaledWeight


@dataclass(frozen=True, slots=True)
class _Packing:
    """For which kernels is packed, and by what."""

    kernels: NativeKernels
    pack: PackNatively


@contextmanager
def packing_with(
    kernels: NativeKernels | None, pack: PackNatively | None = None
) -> Generator[None]:
    """Inside, `pack_weight` packs for `kernels` what they can multiply; None: for torch.

    `pack` does what `kernels.pack` does, for whoever has it done already.
    """
    token = _PACKING.set(None if kernels is None else _Packing(kernels, pack or kernels.pack))
    try:
        yield
    finally:
        _PACKING.reset(token)


def pack_weight(weight_MK: Tensor | BlockScaledWeight | Int4Weight) -> Weight:
    """The weight in the fastest form its device has: packed on most CPUs, else as it is.

    One of four bits is for our own kernels alone.
    """
    if isinstance(weight_MK, BlockScaledWeight):
        return weight_MK
    packing = _PACKING.get()
    if isinstance(weight_MK, Int4Weight):
        assert packing is not None, "weights of four bits are read by native kernels alone"
        packed = packing.pack(weight_MK)
        return NativeWeight(packing.kernels, packed, *weight_MK.shape, weight_MK.group_size)
    if packing and weight_MK.device.type in _NATIVE_DEVICES and weight_MK.dtype == torch.bfloat16:
        return NativeWeight(packing.kernels, packing.pack(weight_MK), *weight_MK.shape)
    if not _can_pack(weight_MK):
        return weight_MK
    num_outputs, num_inputs = weight_MK.shape
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_MK, _PACKING_HINT_ROWS)
    return PackedWeight(packed, num_outputs, num_inputs, weight_MK.dtype == torch.float32)


def measure_weight(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int:
    """Bytes of a weight once `pack_weight` has made of it what it is multiplied as here."""
    packing = _PACKING.get()
    if packing is not None and dtype == torch.bfloat16:
        return packing.kernels.measure(num_outputs, num_inputs)
    return num_outputs * num_inputs * dtype.itemsize


def read_rows(weight: Tensor | NativeWeight, ids_T: Tensor) -> Tensor:
    """Rows `[T, K]` of a weight `[M, K]`, as it was before it was packed.

    Raises: `IndexError` for an id that is none of its rows.
    """
    if isinstance(weight, NativeWeight):
        return weight.kernels.read_rows(weight.packed, ids_T, weight.num_outputs, weight.num_inputs)
    return weight.index_select(0, ids_T)


def linear_reference(x_TK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """The product `[T, M]`, in plain torch."""
    return functional.linear(x_TK, weight_MK, bias_M)


def linear(x_TK: Tensor, weight: Weight, bias_M: Tensor | None = None) -> Tensor:
    """The product `[T, M]`, by the form of `weight`."""
    if isinstance(weight, NativeWeight):
        assert x_TK.shape[1] == weight.num_inputs, "x_TK and the packed weight disagree on K"
        # The kernels take addresses: of another dtype they would read other numbers, and go on.
        assert x_TK.dtype == torch.bfloat16, "x_TK is not bf16"
        assert bias_M is None or bias_M.dtype == torch.bfloat16, "bias_M is not bf16"
        return weight.kernels.multiply(
            x_TK if x_TK.stride(1) == 1 else x_TK.contiguous(),
            weight.packed,
            bias_M,
            weight.num_outputs,
            weight.group_size,
        )
    if isinstance(weight, PackedWeight):
        assert x_TK.shape[1] == weight.num_inputs, "x_TK and the packed weight disagree on K"
        return _linear_packed(x_TK, weight, bias_M)
    if isinstance(weight, BlockScaledWeight):
        return block_linear(x_TK, weight, bias_M)
    assert x_TK.shape[1] == weight.shape[1], "x_TK and weight_MK disagree on K"
    if _is_small(x_TK, weight):
        return small_linear(x_TK, weight, bias_M)
    return linear_reference(x_TK, weight, bias_M)


def _is_small(x_TK: Tensor, weight_MK: Tensor) -> bool:
    """True where our kernel was measured to be faster than cuBLAS."""
    num_rows = x_TK.shape[0]
    if not (uses_triton(x_TK) and 0 < num_rows <= MAX_ROWS and x_TK.is_contiguous()):
        return False
    return SMALL_LINEAR.prefers_ours(find_traits(x_TK.device), num_rows, *weight_MK.shape)


def _linear_packed(x_TK: Tensor, weight: PackedWeight, bias_M: Tensor | None) -> Tensor:
    """The product through oneDNN, piece by piece."""
    pieces: list[Tensor] = []
    first = 0
    for count in cut_rows(x_TK.shape[0]):
        pieces.append(_multiply_piece(x_TK[first : first + count], count, weight, bias_M))
        first += count
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _multiply_piece(
    x_TK: Tensor, num_computed: int, weight: PackedWeight, bias_M: Tensor | None
) -> Tensor:
    """One piece's product, filled up to `num_computed` rows, by the operator that inductor's
    freezing uses.
    """
    num_rows = x_TK.shape[0]
    if num_computed == 1 and weight.doubles_single_row:
        num_computed = 2
    if num_rows < num_computed:
        x_TK = functional.pad(x_TK, (0, 0, 0, num_computed - num_rows))
    out_TM = torch.ops.mkldnn._linear_pointwise(x_TK, weight.packed, bias_M, "none", [], "")
    return out_TM[:num_rows]


def cut_rows(num_rows: int) -> list[int]:
    """How many rows each piece computes; the last may have fewer of its own."""
    counts: list[int] = []
    while num_rows > _WHOLE_ROWS:
        counts.append(_ROW_COUNTS[bisect_right(_ROW_COUNTS, num_rows) - 1])
        num_rows -= counts[-1]
    if num_rows or not counts:
        counts.append(_ROW_COUNTS[bisect_left(_ROW_COUNTS, num_rows)])
    return counts


def _can_pack(weight_MK: Tensor) -> bool:
    """True when oneDNN has kernels for this device and dtype."""
    if weight_MK.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight_MK.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight_MK.dtype == torch.float32
