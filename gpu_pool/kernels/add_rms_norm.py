"""Residual add and norm in one: r' = r + x, y = rms_norm(r').

Every layer needs both twice; joined, the sum is read once. Shapes: T tokens, D hidden size.
Takes bf16, fp16 or fp32; r' is rounded to the dtype before the norm, as an unfused pair does it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.cpu.current import find_current
from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.rms_norm import rms_norm_reference
from gpu_pool.kernels.triton_language import choose_warps, jit, next_power_of_2, tl, uses_triton


def add_rms_norm_reference(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The normed sum and the sum, in plain torch."""
    sum_TD = residual_TD + x_TD
    return rms_norm_reference(sum_TD, weight_D, eps), sum_TD


@jit
def _add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    sum_ptr,
    size,
    eps,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row per program."""
    wait_for_inputs(DEPENDENT)
    offset = tl.program_id(0).to(tl.int64) * size
    columns = tl.arange(0, BLOCK)
    is_inside = columns < size
    x = tl.load(x_ptr + offset + columns, mask=is_inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + offset + columns, mask=is_inside, other=0.0).to(tl.float32)
    total = (residual + x).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + offset + columns, total, mask=is_inside)
    total = total.to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
    y = total * tl.rsqrt(tl.sum(total * total, 0) / size + eps) * weight
    tl.store(out_ptr + offset + columns, y.to(out_ptr.dtype.element_ty), mask=is_inside)


def add_rms_norm_triton(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The normed sum and the sum, by triton."""
    num_rows, size = x_TD.shape
    assert x_TD.is_contiguous(), "x_TD is not contiguous"
    assert residual_TD.is_contiguous(), "residual_TD is not contiguous"
    out_TD, sum_TD = torch.empty_like(x_TD), torch.empty_like(x_TD)
    block = next_power_of_2(size)
    _add_rms_norm_kernel[(num_rows,)](
        x_TD,
        residual_TD,
        weight_D,
        out_TD,
        sum_TD,
        size,
        eps,
        BLOCK=block,
        num_warps=choose_warps(block),
        **find_launch_options(x_TD.device),
    )
    return out_TD, sum_TD


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The normed sum and the sum itself, which is the next residual."""
    assert x_TD.shape == residual_TD.shape, "x_TD and residual_TD differ in shape"
    assert x_TD.shape[1:] == weight_D.shape, "x_TD and weight_D disagree on D"
    if uses_triton(x_TD):
        return add_rms_norm_triton(x_TD, residual_TD, weight_D, eps)
    kernels = find_current(x_TD, residual_TD, weight=weight_D)
    if kernels and x_TD.dim() == 2:
        return kernels.add_norm(x_TD, residual_TD, weight_D, eps)
    return add_rms_norm_reference(x_TD, residual_TD, weight_D, eps)
