"""Rotary position embedding, in place: each head's halves (a, b) become (a·c − b·s, b·c + a·s).

Halves are paired as Hugging Face pairs them. The caller's sine table carries the sign, −s for the
first half and s for the second, so that a roll by half a head replaces negate and concatenate.
Shapes: T tokens, N heads, H head dim. Takes bf16, fp16 or fp32. Source: Su et al. 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton


def rotary_reference(x_TNH: Tensor, cos_TH: Tensor, signed_sin_TH: Tensor) -> None:
    """Turns `x_TNH`, which may be a part of a larger tensor, in plain torch."""
    cos_T1H, sin_T1H = cos_TH[:, None], signed_sin_TH[:, None]
    swapped_TNH = x_TNH.roll(x_TNH.shape[-1] // 2, -1)
    torch.addcmul(x_TNH * cos_T1H, swapped_TNH, sin_T1H, out=x_TNH)


@jit
def _rotary_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    token_stride,
    head_stride,
    table_stride,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one token per program."""
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    is_dim = dims < HALF
    a_ptr = x_ptr + token * token_stride + tl.program_id(1) * head_stride + dims
    table = token * table_stride + dims
    a = tl.load(a_ptr, mask=is_dim).to(tl.float32)
    b = tl.load(a_ptr + HALF, mask=is_dim).to(tl.float32)
    cos_a = tl.load(cos_ptr + table, mask=is_dim).to(tl.float32)
    cos_b = tl.load(cos_ptr + table + HALF, mask=is_dim).to(tl.float32)
    sin_a = tl.load(sin_ptr + table, mask=is_dim).to(tl.float32)
    sin_b = tl.load(sin_ptr + table + HALF, mask=is_dim).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    tl.store(a_ptr, (a * cos_a + b * sin_a).to(dtype), mask=is_dim)
    tl.store(a_ptr + HALF, (b * cos_b + a * sin_b).to(dtype), mask=is_dim)


def rotary_triton(x_TNH: Tensor, cos_TH: Tensor, signed_sin_TH: Tensor) -> None:
    """Turns `x_TNH` by triton."""
    num_tokens, num_heads, head_dim = x_TNH.shape
    assert x_TNH.stride(2) == 1, "the elements of a head lie apart"
    assert cos_TH.stride() == signed_sin_TH.stride(), "cos_TH and signed_sin_TH lie differently"
    assert cos_TH.stride(1) == 1, "the elements of a row of cos_TH lie apart"
    _rotary_kernel[(num_tokens, num_heads)](
        x_TNH,
        cos_TH,
        signed_sin_TH,
        x_TNH.stride(0),
        x_TNH.stride(1),
        cos_TH.stride(0),
        HALF=head_dim // 2,
        BLOCK=next_power_of_2(head_dim // 2),
        num_warps=1,
    )


def rotary(x_TNH: Tensor, cos_TH: Tensor, signed_sin_TH: Tensor) -> None:
    """Turns every head of `x_TNH` by its token's position, in place."""
    num_tokens, _, head_dim = x_TNH.shape
    assert cos_TH.shape == (num_tokens, head_dim), "cos_TH does not fit x_TNH"
    assert signed_sin_TH.shape == (num_tokens, head_dim), "signed_sin_TH does not fit x_TNH"
    if uses_triton(x_TNH):
        rotary_triton(x_TNH, cos_TH, signed_sin_TH)
    else:
        rotary_reference(x_TNH, cos_TH, signed_sin_TH)
