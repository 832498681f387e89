"""Root-mean-square norm: y = x / sqrt(mean(x²) + eps) · w, over the last dimension.

Shapes: T tokens, D hidden size. Takes bf16, fp16 or fp32; the mean is taken in fp32 either way.
Weights may be fp32 beside bf16 states: those that a family stores as a distance from one lose too
much in bf16.
Source: Zhang and Sennrich 2019. Read next: `add_rms_norm`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.cpu.current import find_current
from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.triton_language import choose_warps, jit, next_power_of_2, tl, uses_triton


def rms_norm_reference(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`x_TD` normed, in plain torch."""
    if x_TD.dtype != weight_D.dtype:
        normed_TD = functional.rms_norm(x_TD.to(weight_D.dtype), weight_D.shape, weight_D, eps)
        return normed_TD.to(x_TD.dtype)
    return functional.rms_norm(x_TD, weight_D.shape, weight_D, eps)


@jit
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    size,
    eps,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row per program."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_inside = columns < size
    x = tl.load(x_ptr + row * x_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * weight
    tl.store(out_ptr + row * size + columns, y.to(out_ptr.dtype.element_ty), mask=is_inside)


def rms_norm_triton(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`x_TD` normed, by triton; its rows may lie apart, the elements of a row may not."""
    num_rows, size = x_TD.shape
    assert x_TD.stride(1) == 1, "the elements of a row of x_TD lie apart"
    out_TD = torch.empty((num_rows, size), dtype=x_TD.dtype, device=x_TD.device)
    block = next_power_of_2(size)
    _rms_norm_kernel[(num_rows,)](
        x_TD,
        weight_D,
        out_TD,
        x_TD.stride(0),
        size,
        eps,
        BLOCK=block,
        num_warps=choose_warps(block),
        **find_launch_options(x_TD.device),
    )
    return out_TD


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`x_TD` normed, of the same shape and dtype."""
    assert x_TD.shape[1:] == weight_D.shape, "x_TD and weight_D disagree on D"
    if uses_triton(x_TD):
        return rms_norm_triton(x_TD, weight_D, eps)
    kernels = find_current(x_TD, weight=weight_D)
    if kernels and x_TD.dim() == 2:
        return kernels.add_norm(x_TD, None, weight_D, eps)[0]
    return rms_norm_reference(x_TD, weight_D, eps)
