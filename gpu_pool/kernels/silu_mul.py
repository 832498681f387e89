"""The gate of a feed-forward network: y = silu(g) · u, with g and u side by side in one tensor.

Shapes: T tokens, F intermediate size. Takes bf16, fp16 or fp32; silu is rounded to the dtype before
the product, as an unfused pair does it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.activations import silu
from gpu_pool.kernels.cpu.current import find_current
from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_BLOCK = 1024


def silu_mul_reference(gate_up_T2F: Tensor) -> Tensor:
    """The gated values `[T, F]`, in plain torch."""
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
    return silu(gate_TF).mul_(up_TF)


@jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, size, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """A stretch of one row per program."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < size
    gate_ptr = gate_up_ptr + row * 2 * size + columns
    gate = tl.load(gate_ptr, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + size, mask=is_inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty).to(tl.float32)
    y = (silu * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * size + columns, y, mask=is_inside)


def silu_mul_triton(gate_up_T2F: Tensor) -> Tensor:
    """The gated values `[T, F]`, by triton."""
    assert gate_up_T2F.is_contiguous(), "gate_up_T2F is not contiguous"
    num_rows, size = gate_up_T2F.shape[0], gate_up_T2F.shape[1] // 2
    out_TF = torch.empty((num_rows, size), dtype=gate_up_T2F.dtype, device=gate_up_T2F.device)
    grid = (num_rows, -(-size // _BLOCK))
    options = find_launch_options(out_TF.device)
    _silu_mul_kernel[grid](gate_up_T2F, out_TF, size, BLOCK=_BLOCK, num_warps=4, **options)
    return out_TF


def silu_mul(gate_up_T2F: Tensor) -> Tensor:
    """The gated values `[T, F]` of a fused gate-and-up projection."""
    assert gate_up_T2F.shape[-1] % 2 == 0, "gate_up_T2F does not split into halves"
    if uses_triton(gate_up_T2F):
        return silu_mul_triton(gate_up_T2F)
    kernels = find_current(gate_up_T2F)
    if kernels and gate_up_T2F.dim() == 2:
        return kernels.silu_mul(gate_up_T2F)
    return silu_mul_reference(gate_up_T2F)
