"""Puts the keys and values of a step into slots of eight-bit KV memory.

Every head of a token, of its keys and of its values, is divided by its own scale, max |x| / 448,
and rounded to e4m3, to the same bits on every GPU and in plain torch.
Shapes: T tokens, E elements, X slots of S bytes as `fp8_slots` has them. Slots are distinct.
Takes bf16, fp16 or fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.fp8_slots import LARGEST, Fp8Slots, narrow, narrow_slots
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton


def fp8_write_reference(
    slots_XS: Tensor, slot_ids_T: Tensor, kv_TE: Tensor, form: Fp8Slots
) -> None:
    """Writes `kv_TE[t]` to `slots_XS[slot_ids_T[t]]`, in plain torch."""
    slots_XS.index_copy_(0, slot_ids_T, narrow_slots(kv_TE, form))


@jit
def _fp8_write_kernel(
    slots_ptr,
    scales_ptr,
    slot_ids_ptr,
    kv_ptr,
    kv_stride,
    SLOT_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """One head of one token's keys or values per program."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    slot = tl.load(slot_ids_ptr + token).to(tl.int64)
    kv_offsets = token * kv_stride + head * HEAD_DIM + dims
    kv = tl.load(kv_ptr + kv_offsets, mask=is_dim, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(kv), 0) * (1 / LARGEST)
    divisor = tl.where(scale > 0, scale, 1.0)
    bits = narrow(tl.math.div_rn(kv, tl.zeros_like(kv) + divisor))
    tl.store(slots_ptr + slot * SLOT_BYTES + head * HEAD_DIM + dims, bits, mask=is_dim)
    tl.store(scales_ptr + slot * (SLOT_BYTES // 4) + SCALE_OFFSET // 4 + head, scale)


def fp8_write_triton(slots_XS: Tensor, slot_ids_T: Tensor, kv_TE: Tensor, form: Fp8Slots) -> None:
    """Writes `kv_TE[t]` to `slots_XS[slot_ids_T[t]]`, by triton; rows of kv may lie apart."""
    assert kv_TE.stride(1) == 1, "the elements of a row of kv_TE lie apart"
    _fp8_write_kernel[(kv_TE.shape[0], form.num_scales)](
        slots_XS,
        slots_XS.view(torch.float32),
        slot_ids_T,
        kv_TE,
        kv_TE.stride(0),
        SLOT_BYTES=form.num_bytes,
        SCALE_OFFSET=form.scale_offset,
        HEAD_DIM=form.head_dim,
        PADDED_DIM=next_power_of_2(form.head_dim),
        LARGEST=LARGEST,
        num_warps=1,
    )


def fp8_write(slots_XS: Tensor, slot_ids_T: Tensor, kv_TE: Tensor, form: Fp8Slots) -> None:
    """Writes `kv_TE[t]` to `slots_XS[slot_ids_T[t]]`."""
    assert slots_XS.shape[1] == form.num_bytes, "slots are of another form"
    assert kv_TE.shape == (slot_ids_T.shape[0], form.num_elements), "kv_TE does not fit the slots"
    if uses_triton(kv_TE):
        fp8_write_triton(slots_XS, slot_ids_T, kv_TE, form)
    else:
        fp8_write_reference(slots_XS, slot_ids_T, kv_TE, form)
