"""Puts the keys and values of a step into their slots of the KV memory.

Shapes: T tokens, E = 2 · KV heads · head dim, the keys of a token followed by its values; one slot
holds one token of one layer. Slots are distinct. Any dtype, the same on both sides.
"""

from __future__ import annotations

from torch import Tensor

from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_BLOCK = 1024


def kv_write_reference(slots_XE: Tensor, slot_ids_T: Tensor, kv_TE: Tensor) -> None:
    """Writes `kv_TE[t]` to `slots_XE[slot_ids_T[t]]`, in plain torch."""
    slots_XE.index_copy_(0, slot_ids_T, kv_TE)


@jit
def _kv_write_kernel(slots_ptr, slot_ids_ptr, kv_ptr, kv_stride, size, BLOCK: tl.constexpr):
    """A stretch of one token's row per program."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < size
    slot = tl.load(slot_ids_ptr + token).to(tl.int64)
    kv = tl.load(kv_ptr + token * kv_stride + columns, mask=is_inside)
    tl.store(slots_ptr + slot * size + columns, kv, mask=is_inside)


def kv_write_triton(slots_XE: Tensor, slot_ids_T: Tensor, kv_TE: Tensor) -> None:
    """Writes `kv_TE[t]` to `slots_XE[slot_ids_T[t]]`, by triton; rows of kv may lie apart."""
    num_tokens, size = kv_TE.shape
    assert kv_TE.stride(1) == 1, "the elements of a row of kv_TE lie apart"
    grid = (num_tokens, -(-size // _BLOCK))
    _kv_write_kernel[grid](slots_XE, slot_ids_T, kv_TE, kv_TE.stride(0), size, BLOCK=_BLOCK)


def kv_write(slots_XE: Tensor, slot_ids_T: Tensor, kv_TE: Tensor) -> None:
    """Writes `kv_TE[t]` to `slots_XE[slot_ids_T[t]]`."""
    assert kv_TE.shape == (slot_ids_T.shape[0], slots_XE.shape[1]), "kv_TE does not fit the slots"
    if uses_triton(kv_TE):
        kv_write_triton(slots_XE, slot_ids_T, kv_TE)
    else:
        kv_write_reference(slots_XE, slot_ids_T, kv_TE)
