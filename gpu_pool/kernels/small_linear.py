"""Product of a few rows with a weight matrix: y = x · Wᵀ + b, bound by the weight's bytes.

One or two rows are multiplied and added without tensor cores: each program sums a few outputs over
long stretches of inputs and adds up across threads once, at the end. More rows go through tensor
cores in tiles of 16, 32 or 64. Where outputs alone do not fill a GPU, inputs are split and a second
kernel adds the parts in their order: no atomics, the same bits every time.
A row's result depends on its neighbours only where their number changes the form or the tile.
`small_linear_table` says which shapes this is for; all others are cuBLAS's.
Shapes: T rows (at most 64), K inputs, M outputs, S splits. Takes bf16, fp16 or fp32, fp32
accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.dependent_launch import (
    find_launch_options,
    let_next_come,
    wait_for_inputs,
    wait_for_previous,
)
from gpu_pool.kernels.gpu_traits import GpuTraits, find_traits
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

MAX_ROWS = 64
_VECTOR_ROWS = 2
_JOIN_BLOCK = 512


@dataclass(frozen=True, slots=True)
class SmallLaunch:
    """What a program computes at once. `rows` is 1 or 2 without tensor cores, else a tile's."""

    rows: int
    outputs: int
    inputs: int
    num_splits: int
    num_warps: int
    num_stages: int


def choose_small_launch(
    traits: GpuTraits, num_rows: int, num_outputs: int, num_inputs: int, itemsize: int
) -> SmallLaunch:
    """The settings for a kind of GPU. Measured on an H200 in bf16.

    One row or two: a program reads a few long stretches and holds all of a step's weights in
    registers. More: one program a processor, for each keeps much in flight by itself.
    """
    if num_rows <= _VECTOR_ROWS:
        inputs = (2048 if 2048 < num_inputs <= 4096 else 1024) * 2 // itemsize
        outputs = 4 if inputs * itemsize == 2048 else 2
        num_splits = count_splits(traits, -(-num_outputs // outputs), num_inputs // (2 * inputs))
        return SmallLaunch(num_rows, outputs, inputs, num_splits, 4, 1)
    rows = max(16, next_power_of_2(num_rows))
    outputs = 64 if num_outputs >= 128 * traits.num_processors else 32
    inputs = 256 // itemsize
    most = num_inputs // (4 * inputs)
    num_splits = count_splits(traits, -(-num_outputs // outputs), most, share=0.75)
    num_stages = 6 if traits.shared_bytes > 128 << 10 and rows < MAX_ROWS else 4
    return SmallLaunch(rows, outputs, inputs, num_splits, 4, num_stages)


def count_splits(traits: GpuTraits, num_programs: int, most: int, share: float = 2.0) -> int:
    """Splits, a power of two up to `most`, that make `share` programs for each processor."""
    num_splits = 1
    while num_programs * num_splits < share * traits.num_processors and 2 * num_splits <= most:
        num_splits *= 2
    return num_splits


def small_linear_reference(x_TK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """The product `[T, M]`, in plain torch; adds in fp32 at least and rounds once."""
    y_TM = x_TK.float() @ weight_MK.float().T
    return (y_TM if bias_M is None else y_TM + bias_M.float()).to(x_TK.dtype)


@jit
def _vector_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_outputs,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Some outputs of one split per program, for one row or two; weights come a step ahead."""
    let_next_come(DEPENDENT)
    first_output = tl.program_id(0) * OUTPUTS
    split = tl.program_id(1)
    outputs = tl.arange(0, OUTPUTS)
    is_output = (outputs < num_outputs - first_output)[:, None]
    inputs = tl.arange(0, BLOCK_INPUTS)
    weight_ptrs = weight_ptr + first_output.to(tl.int64) * INPUTS
    weight_ptrs += outputs[:, None] * INPUTS + inputs[None, :]
    STRETCH: tl.constexpr = (INPUTS + SPLITS * BLOCK_INPUTS - 1) // (SPLITS * BLOCK_INPUTS)
    start = split * STRETCH * BLOCK_INPUTS
    sums = tl.zeros([OUTPUTS, BLOCK_INPUTS], tl.float32)
    other_sums = tl.zeros([OUTPUTS, BLOCK_INPUTS], tl.float32)
    is_input = inputs < INPUTS - start
    w = tl.load(weight_ptrs + start, mask=is_output & is_input[None, :], other=0.0)
    wait_for_previous(DEPENDENT)
    for step in range(STRETCH):
        here = start + step * BLOCK_INPUTS
        is_next = inputs < INPUTS - here - BLOCK_INPUTS
        next_w = w
        if step + 1 < STRETCH:
            mask = is_output & is_next[None, :]
            next_w = tl.load(weight_ptrs + here + BLOCK_INPUTS, mask=mask, other=0.0)
        x = tl.load(x_ptr + here + inputs, mask=is_input, other=0.0).to(tl.float32)
        sums += w.to(tl.float32) * x[None, :]
        if ROWS == 2:
            x = tl.load(x_ptr + INPUTS + here + inputs, mask=is_input, other=0.0).to(tl.float32)
            other_sums += w.to(tl.float32) * x[None, :]
        w = next_w
        is_input = is_next
    out_ptrs = out_ptr + split * ROWS * num_outputs + first_output + outputs
    y = tl.sum(sums, 1)
    other_y = tl.sum(other_sums, 1)
    is_output = outputs < num_outputs - first_output
    if HAS_BIAS:
        bias = tl.load(bias_ptr + first_output + outputs, mask=is_output, other=0.0).to(tl.float32)
        y += bias
        other_y += bias
    tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=is_output)
    if ROWS == 2:
        tl.store(out_ptrs + num_outputs, other_y.to(out_ptr.dtype.element_ty), mask=is_output)


@jit
def _tile_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Some outputs of one split per program, for all rows."""
    wait_for_inputs(DEPENDENT)
    first_output = tl.program_id(0) * OUTPUTS
    split = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    is_row = rows < num_rows
    outputs = tl.arange(0, OUTPUTS)
    is_output = outputs < num_outputs - first_output
    inputs = tl.arange(0, BLOCK_INPUTS)
    x_ptrs = x_ptr + rows[:, None] * INPUTS + inputs[None, :]
    weight_ptrs = weight_ptr + first_output.to(tl.int64) * INPUTS
    weight_ptrs += outputs[None, :] * INPUTS + inputs[:, None]
    STRETCH: tl.constexpr = (INPUTS + SPLITS * BLOCK_INPUTS - 1) // (SPLITS * BLOCK_INPUTS)
    start = split * STRETCH * BLOCK_INPUTS
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for step in range(STRETCH):
        here = start + step * BLOCK_INPUTS
        is_input = inputs < INPUTS - here
        x = tl.load(x_ptrs + here, mask=is_row[:, None] & is_input[None, :], other=0.0)
        w = tl.load(weight_ptrs + here, mask=is_output[None, :] & is_input[:, None], other=0.0)
        sums = tl.dot(x, w, sums, input_precision=PRECISION)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + first_output + outputs, mask=is_output, other=0.0)
        sums += bias.to(tl.float32)[None, :]
    out_ptrs = out_ptr + split * num_rows * num_outputs + first_output
    tl.store(
        out_ptrs + rows[:, None] * num_outputs + outputs[None, :],
        sums.to(out_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_output[None, :],
    )


@jit
def _join_kernel(
    parts_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A stretch of one row per program: its parts in their order, and the bias."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_output = outputs < num_outputs
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        part_ptr = parts_ptr + (split * num_rows + row) * num_outputs
        total += tl.load(part_ptr + outputs, mask=is_output, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)
    y = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * num_outputs + outputs, y, mask=is_output)


def small_linear_triton(
    x_TK: Tensor, weight_MK: Tensor, bias_M: Tensor | None, launch: SmallLaunch | None = None
) -> Tensor:
    """The product `[T, M]`, by triton; `launch` is chosen by shape unless it is given."""
    assert x_TK.is_contiguous(), "x_TK is not contiguous"
    assert weight_MK.is_contiguous(), "weight_MK is not contiguous"
    (num_rows, num_inputs), num_outputs = x_TK.shape, weight_MK.shape[0]
    if launch is None:
        traits = find_traits(x_TK.device)
        launch = choose_small_launch(traits, num_rows, num_outputs, num_inputs, x_TK.itemsize)
    joins = launch.num_splits > 1
    shape = (launch.num_splits, num_rows, num_outputs)
    dtype = torch.float32 if joins else x_TK.dtype
    parts = torch.empty(shape, dtype=dtype, device=x_TK.device)
    grid = (-(-num_outputs // launch.outputs), launch.num_splits)
    constants = {
        "ROWS": launch.rows,
        "INPUTS": num_inputs,
        "OUTPUTS": launch.outputs,
        "BLOCK_INPUTS": launch.inputs,
        "SPLITS": launch.num_splits,
        "HAS_BIAS": bias_M is not None and not joins,
    }
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    options |= find_launch_options(x_TK.device)
    if launch.rows <= _VECTOR_ROWS:
        _vector_kernel[grid](x_TK, weight_MK, bias_M, parts, num_outputs, **constants, **options)
    else:
        precision = "ieee" if x_TK.dtype == torch.float32 else "tf32"
        tensors = (x_TK, weight_MK, bias_M, parts)
        _tile_kernel[grid](
            *tensors, num_rows, num_outputs, **constants, PRECISION=precision, **options
        )
    return join_splits(parts, bias_M, x_TK.dtype) if joins else parts[0]


def join_splits(parts_STM: Tensor, bias_M: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The sum `[T, M]` of all parts, in their order, and the bias."""
    num_splits, num_rows, num_outputs = parts_STM.shape
    out_TM = torch.empty((num_rows, num_outputs), dtype=dtype, device=parts_STM.device)
    _join_kernel[(num_rows, -(-num_outputs // _JOIN_BLOCK))](
        parts_STM,
        bias_M,
        out_TM,
        num_rows,
        num_outputs,
        SPLITS=num_splits,
        HAS_BIAS=bias_M is not None,
        BLOCK=_JOIN_BLOCK,
        num_warps=4,
        **find_launch_options(out_TM.device),
    )
    return out_TM


def small_linear(x_TK: Tensor, weight_MK: Tensor, bias_M: Tensor | None = None) -> Tensor:
    """The product `[T, M]` of at most `MAX_ROWS` rows."""
    assert x_TK.shape[1] == weight_MK.shape[1], "x_TK and weight_MK disagree on K"
    assert 0 < x_TK.shape[0] <= MAX_ROWS, "x_TK has too many rows, or none"
    if uses_triton(x_TK):
        return small_linear_triton(x_TK, weight_MK, bias_M)
    return small_linear_reference(x_TK, weight_MK, bias_M)
