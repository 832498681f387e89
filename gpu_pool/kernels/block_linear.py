"""Product with a weight in fp8 blocks: y = x · Wᵀ + b, few rows or many.

Rows stay in their dtype while weights are widened in registers; the weight is the product's left
side, which may come from there. Each block of 128 inputs is multiplied by itself and added in fp32
with its factor. Where outputs alone do not fill a GPU, inputs are split, as in `small_linear`.
A row's result depends on its neighbours only where their number changes tile or splits.
Shapes: T rows, K inputs, M outputs. Takes bf16, fp16 or fp32 rows. Source: DeepSeek-V3, 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.fp8_blocks import (
    BLOCK,
    BlockScaledWeight,
    has_fp8,
    widen_blocks_reference,
    widen_e4m3,
)
from gpu_pool.kernels.gpu_traits import GpuTraits, find_traits
from gpu_pool.kernels.small_linear import count_splits, join_splits
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

_OUTPUTS = 64
"""Of a program: they lie in one block."""


@dataclass(frozen=True, slots=True)
class BlockLaunch:
    """What a program computes at once; of inputs it takes a block at a time."""

    rows: int
    outputs: int
    num_splits: int
    num_warps: int
    num_stages: int


def choose_block_launch(
    traits: GpuTraits, num_rows: int, num_outputs: int, num_inputs: int, itemsize: int
) -> BlockLaunch:
    """The settings for a kind of GPU and rows of `itemsize` bytes. Not measured on a GPU yet.

    Rows in fp32, which models are checked in, take smaller tiles: they fill shared memory sooner.
    """
    rows = min(128 if itemsize < 4 else 16, max(16, next_power_of_2(num_rows)))
    is_roomy = traits.shared_bytes > 128 << 10
    num_programs = -(-num_rows // rows) * -(-num_outputs // _OUTPUTS)
    num_splits = count_splits(traits, num_programs, num_inputs // (4 * BLOCK))
    if rows == 128:
        return BlockLaunch(rows, _OUTPUTS, num_splits, 8, 4 if is_roomy else 3)
    return BlockLaunch(rows, _OUTPUTS, num_splits, 4, 5 if is_roomy else 4)


def block_linear_reference(
    x_TK: Tensor, weight: BlockScaledWeight, bias_M: Tensor | None
) -> Tensor:
    """The product `[T, M]`, in plain torch; adds in fp32 and rounds once."""
    y_TM = x_TK.float() @ widen_blocks_reference(weight).T
    return (y_TM if bias_M is None else y_TM + bias_M.float()).to(x_TK.dtype)


@jit
def _block_linear_kernel(
    x_ptr,
    bits_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_FP8: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some outputs of some rows of one split per program; outputs are rows of the product here."""
    STEPS: tl.constexpr = (INPUTS + BLOCK - 1) // BLOCK
    STRETCH: tl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    first_row = tl.program_id(0) * ROWS
    first_output = tl.program_id(1) * OUTPUTS
    split = tl.program_id(2)
    rows = tl.arange(0, ROWS)
    is_row = rows < num_rows - first_row
    outputs = tl.arange(0, OUTPUTS)
    is_output = outputs < num_outputs - first_output
    inputs = tl.arange(0, BLOCK)
    x_ptrs = x_ptr + first_row.to(tl.int64) * INPUTS + rows[None, :] * INPUTS + inputs[:, None]
    bits_ptrs = bits_ptr + first_output.to(tl.int64) * INPUTS
    bits_ptrs += outputs[:, None] * INPUTS + inputs[None, :]
    scales_row_ptr = scales_ptr + first_output // BLOCK * STEPS
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for step in range(split * STRETCH, tl.minimum(split * STRETCH + STRETCH, STEPS)):
        here = step * BLOCK
        is_input = (inputs < INPUTS - here) | (INPUTS % BLOCK == 0)
        x = tl.load(x_ptrs + here, mask=is_input[:, None] & is_row[None, :], other=0.0)
        bits = tl.load(bits_ptrs + here, mask=is_output[:, None] & is_input[None, :], other=0)
        scale = tl.load(scales_row_ptr + step)
        w = widen_e4m3(bits, HAS_FP8, x_ptr.dtype.element_ty)
        sums += tl.dot(w, x, input_precision=PRECISION) * scale
    if HAS_BIAS:
        bias = tl.load(bias_ptr + first_output + outputs, mask=is_output, other=0.0)
        sums += bias.to(tl.float32)[:, None]
    to_rows = (split * num_rows + first_row).to(tl.int64) + rows
    tl.store(
        out_ptr + to_rows[None, :] * num_outputs + first_output + outputs[:, None],
        sums.to(out_ptr.dtype.element_ty),
        mask=is_output[:, None] & is_row[None, :],
    )


def block_linear_triton(
    x_TK: Tensor,
    weight: BlockScaledWeight,
    bias_M: Tensor | None,
    launch: BlockLaunch | None = None,
) -> Tensor:
    """The product `[T, M]`, by triton; `launch` is chosen by shape unless it is given."""
    assert x_TK.is_contiguous(), "x_TK is not contiguous"
    assert weight.weight.is_contiguous(), "the weight is not contiguous"
    assert weight.scales.is_contiguous(), "the scales are not contiguous"
    (num_rows, num_inputs), num_outputs = x_TK.shape, weight.weight.shape[0]
    traits = find_traits(x_TK.device)
    if launch is None:
        launch = choose_block_launch(traits, num_rows, num_outputs, num_inputs, x_TK.itemsize)
    joins = launch.num_splits > 1
    shape = (launch.num_splits, num_rows, num_outputs)
    dtype = torch.float32 if joins else x_TK.dtype
    parts = torch.empty(shape, dtype=dtype, device=x_TK.device)
    grid = (-(-num_rows // launch.rows), -(-num_outputs // launch.outputs), launch.num_splits)
    _block_linear_kernel[grid](
        x_TK,
        weight.bits,
        weight.scales,
        bias_M,
        parts,
        num_rows,
        num_outputs,
        INPUTS=num_inputs,
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        SPLITS=launch.num_splits,
        HAS_BIAS=bias_M is not None and not joins,
        HAS_FP8=x_TK.is_cuda and has_fp8(traits),
        PRECISION="ieee" if x_TK.dtype == torch.float32 else "tf32",
        BLOCK=BLOCK,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return join_splits(parts, bias_M, x_TK.dtype) if joins else parts[0]


def block_linear(x_TK: Tensor, weight: BlockScaledWeight, bias_M: Tensor | None = None) -> Tensor:
    """The product `[T, M]`; rows stay in their dtype."""
    assert x_TK.shape[1] == weight.weight.shape[1], "x_TK and the weight disagree on K"
    if uses_triton(x_TK):
        return block_linear_triton(x_TK.contiguous(), weight, bias_M)
    return block_linear_reference(x_TK, weight, bias_M)
