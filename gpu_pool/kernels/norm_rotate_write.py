"""Heads ready to attend: queries and keys normed and turned, keys and values in their slots.

What `head_norm`, `rotary` and `kv_write` do one after the other, in one go over the rows of the
fused product, each step rounded where those round. Queries stay where they lie; of keys and values
what lies beside them afterwards is not told, unless there are no slots: then all stay.
Shapes: T tokens, N query heads, K KV heads, X = N + 2 · K, H head dim, E = 2 · K · H. Takes bf16,
fp16 or fp32. Without norm and without rotation those steps are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.cpu.calls import TurnCall
from gpu_pool.kernels.cpu.current import find_current, turns_heads
from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.head_norm import HeadNorm, head_norm_reference
from gpu_pool.kernels.kv_write import kv_write_reference
from gpu_pool.kernels.rotary import rotary_reference
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

_HEADS = 8
"""Heads of one program."""


@dataclass(frozen=True, slots=True)
class KvSlots:
    """Where a layer's keys and values of a step go, in the dtype they are computed in."""

    slots_XE: Tensor
    slot_ids_T: Tensor
    """int64, distinct."""


def norm_rotate_write_reference(
    heads_TXH: Tensor,
    num_heads: int,
    norm: HeadNorm | None,
    rotation: tuple[Tensor, Tensor] | None,
    slots: KvSlots | None,
) -> None:
    """The three steps in plain torch."""
    num_turned = (num_heads + heads_TXH.shape[1]) // 2
    turned_TNH = heads_TXH[:, :num_turned]
    if norm is not None:
        head_norm_reference(turned_TNH, norm.weight_XH, norm.eps)
    if rotation is not None:
        rotary_reference(turned_TNH, *rotation)
    if slots is not None:
        kv_TE = heads_TXH[:, num_heads:].flatten(1)
        kv_write_reference(slots.slots_XE, slots.slot_ids_T, kv_TE)


@jit
def _norm_rotate_write_kernel(
    heads_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    slot_ids_ptr,
    token_stride,
    table_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_ROTATION: tl.constexpr,
    WRITES: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Some heads of one token per program, as their first halves and their second ones."""
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dims = tl.arange(0, BLOCK)[None, :]
    is_inside = (heads < NUM_HEADS + 2 * KV_HEADS) & (dims < HALF)
    is_turned = heads < NUM_HEADS + KV_HEADS
    places = heads * 2 * HALF + dims
    dtype = heads_ptr.dtype.element_ty
    a_ptr = heads_ptr + token * token_stride + places
    first = tl.load(a_ptr, mask=is_inside, other=0.0)
    second = tl.load(a_ptr + HALF, mask=is_inside, other=0.0)
    a = first.to(tl.float32)
    b = second.to(tl.float32)
    if HAS_NORM:
        between = weight_ptr.dtype.element_ty
        is_weighed = is_inside & is_turned
        weight_a = tl.load(weight_ptr + places, mask=is_weighed, other=0.0).to(tl.float32)
        weight_b = tl.load(weight_ptr + places + HALF, mask=is_weighed, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + eps)[:, None]
        a = ((a * scale).to(between).to(tl.float32) * weight_a).to(dtype).to(tl.float32)
        b = ((b * scale).to(between).to(tl.float32) * weight_b).to(dtype).to(tl.float32)
    if HAS_ROTATION:
        table = token * table_stride + dims
        cos_a = tl.load(cos_ptr + table, mask=dims < HALF, other=0.0).to(tl.float32)
        cos_b = tl.load(cos_ptr + table + HALF, mask=dims < HALF, other=0.0).to(tl.float32)
        sin_a = tl.load(sin_ptr + table, mask=dims < HALF, other=0.0).to(tl.float32)
        sin_b = tl.load(sin_ptr + table + HALF, mask=dims < HALF, other=0.0).to(tl.float32)
        turned_a = a * cos_a + b * sin_a
        b = b * cos_b + a * sin_b
        a = turned_a
    first = tl.where(is_turned, a.to(dtype), first)
    second = tl.where(is_turned, b.to(dtype), second)
    stays = is_inside & is_turned
    if WRITES:
        stays = is_inside & (heads < NUM_HEADS)
        is_written = is_inside & (heads >= NUM_HEADS)
        slot = tl.load(slot_ids_ptr + token).to(tl.int64)
        slot_ptr = slots_ptr + slot * (4 * KV_HEADS * HALF) + places - NUM_HEADS * 2 * HALF
        tl.store(slot_ptr, first, mask=is_written)
        tl.store(slot_ptr + HALF, second, mask=is_written)
    tl.store(a_ptr, first, mask=stays)
    tl.store(a_ptr + HALF, second, mask=stays)


def norm_rotate_write_triton(
    heads_TXH: Tensor,
    num_heads: int,
    norm: HeadNorm | None,
    rotation: tuple[Tensor, Tensor] | None,
    slots: KvSlots | None,
) -> None:
    """The three steps by triton; rows of `heads_TXH` may lie apart."""
    num_tokens, num_all, head_dim = heads_TXH.shape
    assert heads_TXH.stride()[1:] == (head_dim, 1), "the heads of a token lie apart"
    assert head_dim % 2 == 0, "heads have no halves"
    cos_TH, sin_TH = rotation or (heads_TXH, heads_TXH)
    assert rotation is None or cos_TH.stride() == sin_TH.stride(), "the tables lie differently"
    assert rotation is None or cos_TH.stride(1) == 1, "the elements of a row of cos_TH lie apart"
    half = head_dim // 2
    _norm_rotate_write_kernel[(num_tokens, -(-num_all // _HEADS))](
        heads_TXH,
        heads_TXH if norm is None else norm.weight_XH,
        cos_TH,
        sin_TH,
        heads_TXH if slots is None else slots.slots_XE,
        heads_TXH if slots is None else slots.slot_ids_T,
        heads_TXH.stride(0),
        cos_TH.stride(0),
        0.0 if norm is None else norm.eps,
        NUM_HEADS=num_heads,
        KV_HEADS=(num_all - num_heads) // 2,
        HALF=half,
        HAS_NORM=norm is not None,
        HAS_ROTATION=rotation is not None,
        WRITES=slots is not None,
        HEADS=_HEADS,
        BLOCK=next_power_of_2(half),
        num_warps=choose_head_warps(half),
        **find_launch_options(heads_TXH.device),
    )


def choose_head_warps(half: int) -> int:
    """Warps for a program: eight elements of each half a thread, which is one load of bf16."""
    return max(1, min(8, next_power_of_2(half) * _HEADS // 256))


def norm_rotate_write(
    heads_TXH: Tensor,
    num_heads: int,
    norm: HeadNorm | None,
    rotation: tuple[Tensor, Tensor] | None,
    slots: KvSlots | None,
) -> None:
    """Norms and turns queries and keys, in place, and writes keys and values to `slots`."""
    num_tokens, num_all, head_dim = heads_TXH.shape
    num_turned = (num_heads + num_all) // 2
    assert (num_all - num_heads) % 2 == 0, "keys and values differ in number"
    if norm is not None:
        assert norm.weight_XH.shape == (num_turned, head_dim), "the norm does not fit the heads"
    if rotation is not None:
        assert all(t.shape == (num_tokens, head_dim) for t in rotation), "the tables do not fit"
    if slots is not None:
        size = (num_all - num_heads) * head_dim
        assert slots.slots_XE.shape[1] == size, "keys and values do not fit the slots"
        assert slots.slots_XE.dtype == heads_TXH.dtype, "slots are of another dtype"
        assert slots.slot_ids_T.shape[0] == num_tokens, "not one slot for each token"
    if norm is None and rotation is None and slots is None:
        return
    if uses_triton(heads_TXH):
        norm_rotate_write_triton(heads_TXH, num_heads, norm, rotation, slots)
        return
    weight_XH = None if norm is None else norm.weight_XH
    kernels = find_current(heads_TXH, *(rotation or ()), weight=weight_XH)
    if kernels is None or slots is not None or not _turns_natively(heads_TXH, rotation):
        norm_rotate_write_reference(heads_TXH, num_heads, norm, rotation, slots)
        return
    call = TurnCall(
        heads=heads_TXH.data_ptr(),
        weight=None if weight_XH is None else weight_XH.data_ptr(),
        cos=None if rotation is None else rotation[0].data_ptr(),
        sin=None if rotation is None else rotation[1].data_ptr(),
        token_stride=heads_TXH.stride(0),
        table_stride=0 if rotation is None else rotation[0].stride(0),
        num_tokens=num_tokens,
        num_turned=num_turned,
        head_dim=head_dim,
        is_weight_fp32=weight_XH is not None and weight_XH.dtype == torch.float32,
        eps=0.0 if norm is None else norm.eps,
    )
    kernels.turn(call)


def _turns_natively(heads_TXH: Tensor, rotation: tuple[Tensor, Tensor] | None) -> bool:
    """True where halves are whole vectors, heads follow each other and tables lie alike."""
    head_dim = heads_TXH.shape[2]
    do_tables_fit = rotation is None or rotation[0].stride() == rotation[1].stride()
    return do_tables_fit and heads_TXH.stride(1) == head_dim and turns_heads(head_dim)
