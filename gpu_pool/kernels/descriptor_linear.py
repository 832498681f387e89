"""Product of many rows on Hopper: y = x · Wᵀ + b, tiles brought by the tensor memory accelerator.

A descriptor tells the hardware where a tensor lies and which tiles it is read in: one instruction
brings a tile, without addresses in registers, and tiles that reach beyond the end are filled with
zeros. As many programs as there are processors walk the tiles. Warps of two kinds, which triton 3.6
makes on newer GPUs, it does not make on sm_90: the code is the same with `warp_specialize`.
cuBLAS serves such products until a GPU has shown this one to be faster
(`python -m benchmarks.gpu --only descriptor-linear`): nothing calls it but that.
Shapes: T rows, K inputs, M outputs. Takes bf16, fp16 or fp32, fp32 accumulation; rows of K elements
are multiples of 16 bytes. Source: CUTLASS 3 (persistent, warp-specialised products).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_pool.kernels.gpu_traits import GpuTraits, find_traits
from gpu_pool.kernels.triton_language import HAS_TRITON, jit, tl

_ALIGNMENT = 16
"""Bytes that rows of a tensor with a descriptor are multiples of."""


@dataclass(frozen=True, slots=True)
class DescriptorLaunch:
    """What a program computes at once: rows by outputs, so many inputs a step."""

    rows: int
    outputs: int
    step: int
    num_warps: int
    num_stages: int


def can_describe(traits: GpuTraits, num_inputs: int, num_outputs: int, itemsize: int) -> bool:
    """True where hardware and shape allow descriptors."""
    is_aligned = num_inputs * itemsize % _ALIGNMENT == num_outputs * itemsize % _ALIGNMENT == 0
    return traits.capability >= 90 and is_aligned


def choose_descriptor_launch(itemsize: int) -> DescriptorLaunch:
    """Settings for Hopper's 227 KiB. Not measured on a GPU yet."""
    if itemsize > 2:
        return DescriptorLaunch(128, 64, 32, 8, 3)
    return DescriptorLaunch(128, 128, 64, 8, 4)


def descriptor_linear_reference(x_TK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """The product `[T, M]`, in plain torch; adds in fp32 and rounds once."""
    y_TM = x_TK.float() @ weight_MK.float().T
    return (y_TM if bias_M is None else y_TM + bias_M.float()).to(x_TK.dtype)


@jit
def _descriptor_linear_kernel(
    x_tiles,
    weight_tiles,
    out_tiles,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Tiles in turns; neighbours share outputs, so that their weights are read while near."""
    num_row_tiles = tl.cdiv(num_rows, ROWS)
    num_tiles = num_row_tiles * tl.cdiv(num_outputs, OUTPUTS)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        first_row = tile % num_row_tiles * ROWS
        first_output = tile // num_row_tiles * OUTPUTS
        sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for here in range(0, num_inputs, STEP):
            x = x_tiles.load([first_row, here])
            weight = weight_tiles.load([first_output, here])
            sums = tl.dot(x, tl.trans(weight), sums, input_precision=PRECISION)
        if HAS_BIAS:
            outputs = first_output + tl.arange(0, OUTPUTS)
            bias = tl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0)
            sums += bias.to(tl.float32)[None, :]
        out_tiles.store([first_row, first_output], sums.to(out_tiles.dtype))


def descriptor_linear_triton(
    x_TK: Tensor, weight_MK: Tensor, bias_M: Tensor | None = None
) -> Tensor:
    """The product `[T, M]`, by triton. Raises: `AssertionError` where shapes have no descriptor."""
    assert HAS_TRITON, "descriptors are triton's"
    from triton.tools.tensor_descriptor import TensorDescriptor

    describe: Any = TensorDescriptor.from_tensor
    (num_rows, num_inputs), num_outputs = x_TK.shape, weight_MK.shape[0]
    traits = find_traits(x_TK.device)
    itemsize = x_TK.element_size()
    assert x_TK.shape[1] == weight_MK.shape[1], "x_TK and weight_MK disagree on K"
    assert can_describe(traits, num_inputs, num_outputs, itemsize), "rows are not aligned"
    launch = choose_descriptor_launch(itemsize)
    out_TM = torch.empty((num_rows, num_outputs), dtype=x_TK.dtype, device=x_TK.device)
    num_tiles = -(-num_rows // launch.rows) * -(-num_outputs // launch.outputs)
    _descriptor_linear_kernel[(min(traits.num_processors, num_tiles),)](
        describe(x_TK, [launch.rows, launch.step]),
        describe(weight_MK, [launch.outputs, launch.step]),
        describe(out_TM, [launch.rows, launch.outputs]),
        bias_M,
        num_rows,
        num_outputs,
        num_inputs,
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        STEP=launch.step,
        HAS_BIAS=bias_M is not None,
        PRECISION="ieee" if x_TK.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out_TM
