"""What a token's experts made of it, added up: y = Σ w · e, in the order of the token's choice.

Shapes: T tokens, C chosen experts of a token, D hidden size. Takes bf16, fp16 or fp32; adds in
fp32, one after the other, so that a token's sum is the same in any company.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.expert_order import HeldExperts
from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_BLOCK = 1024


def expert_sum_reference(
    each_TCD: Tensor, chosen_TC: Tensor, weights_TC: Tensor | None, held: HeldExperts
) -> Tensor:
    """The sums `[T, D]`, in plain torch."""
    is_held_TC = (chosen_TC >= held.first) & (chosen_TC < held.first + held.count)
    parts_TCD = each_TCD.float()
    if weights_TC is not None:
        parts_TCD = parts_TCD * weights_TC[..., None]
    return parts_TCD.masked_fill(~is_held_TC[..., None], 0.0).sum(1).to(each_TCD.dtype)


@jit
def _expert_sum_kernel(
    each_ptr,
    chosen_ptr,
    weights_ptr,
    out_ptr,
    size,
    first,
    CHOSEN: tl.constexpr,
    HELD: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A stretch of one token's sum per program."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOSEN):
        row = token * CHOSEN + choice
        expert = tl.load(chosen_ptr + row).to(tl.int32) - first
        is_held = (expert >= 0) & (expert < HELD)
        part = tl.load(
            each_ptr + row * size + columns, mask=(columns < size) & is_held, other=0.0
        ).to(tl.float32)
        if HAS_WEIGHTS:
            part = part * tl.load(weights_ptr + row)
        total += part
    tl.store(out_ptr + token * size + columns, total.to(out_ptr.dtype.element_ty), columns < size)


def expert_sum_triton(
    each_TCD: Tensor, chosen_TC: Tensor, weights_TC: Tensor | None, held: HeldExperts
) -> Tensor:
    """The sums `[T, D]`, by triton."""
    assert each_TCD.is_contiguous(), "each_TCD is not contiguous"
    num_tokens, num_chosen, size = each_TCD.shape
    out_TD = torch.empty((num_tokens, size), dtype=each_TCD.dtype, device=each_TCD.device)
    _expert_sum_kernel[(num_tokens, -(-size // _BLOCK))](
        each_TCD,
        chosen_TC,
        weights_TC,
        out_TD,
        size,
        held.first,
        CHOSEN=num_chosen,
        HELD=held.count,
        HAS_WEIGHTS=weights_TC is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out_TD


def expert_sum(
    each_TCD: Tensor, chosen_TC: Tensor, weights_TC: Tensor | None, held: HeldExperts
) -> Tensor:
    """The sums `[T, D]`; what experts that are not held made is not read, and counts as zeros."""
    assert each_TCD.shape[:2] == chosen_TC.shape, "each_TCD and chosen_TC disagree on T or C"
    assert chosen_TC.is_contiguous(), "chosen_TC is not contiguous"
    assert weights_TC is None or weights_TC.is_contiguous(), "weights_TC is not contiguous"
    if uses_triton(each_TCD):
        return expert_sum_triton(each_TCD, chosen_TC, weights_TC, held)
    return expert_sum_reference(each_TCD, chosen_TC, weights_TC, held)
