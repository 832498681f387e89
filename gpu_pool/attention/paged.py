"""One layer's attention over a mixed batch: write the step's keys and values, then attend.

Shapes: T tokens, N query heads, K KV heads, H head dim, E = 2 · K · H (K · H where values are a
part of the keys).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.attention.batch import AttentionBatch, Span, create_attention_batch
from gpu_pool.attention.device_batch import DeviceBatch, attend_on_device, create_device_batch
from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.attention.native_batch import NativeBatch, attend_natively, create_native_batch
from gpu_pool.attention.reach import Reach
from gpu_pool.kernels.attention_form import PLAIN, AttentionForm
from gpu_pool.kernels.decode_attention import decode_attention
from gpu_pool.kernels.norm_rotate_write import KvSlots
from gpu_pool.kernels.prefill_attention import prefill_attention
from gpu_pool.kernels.triton_language import uses_triton


@dataclass(frozen=True, slots=True)
class PagedStep:
    """One KV group in one step: its memory and who attends to what there."""

    cache: KvCache
    batch: AttentionBatch | DeviceBatch | NativeBatch


def create_paged_step(spans: Sequence[Span], cache: KvCache, reach: Reach) -> PagedStep:
    """The step of one group in the form of its device; `spans` are sorted by `order_key`."""
    if cache.kernels is not None:
        return PagedStep(cache, create_native_batch(spans, cache, cache.kernels, reach))
    if uses_triton(cache.blocks):
        return PagedStep(cache, create_device_batch(spans, cache, reach))
    return PagedStep(cache, create_attention_batch(spans, cache, reach))


def find_slots(layer: int, dtype: torch.dtype, step: PagedStep) -> KvSlots | None:
    """Where a layer may write its keys and values itself; None where `attend` has to.

    That is where memory has a dtype of its own, and on a CPU, whose kernels write as they attend.
    """
    if isinstance(step.batch, NativeBatch) or step.cache.slots_XE.dtype != dtype:
        return None
    return KvSlots(step.cache.slots_XE, step.batch.slot_ids[layer])


def attend(
    layer: int,
    q_TNH: Tensor,
    kv_TE: Tensor | None,
    step: PagedStep,
    form: AttentionForm = PLAIN,
) -> Tensor:
    """The mixed values `[T, N, H]` of all tokens; `kv_TE` is in the cache afterwards.

    `layer` counts inside the group. Without `kv_TE` the layer's keys and values have been written
    to the slots of `find_slots`.
    """
    cache, batch = step.cache, step.batch
    if isinstance(batch, NativeBatch):
        assert kv_TE is not None, "the native kernels write keys and values themselves"
        return attend_natively(layer, q_TNH, kv_TE, cache, batch, form)
    if kv_TE is not None:
        cache.write(batch.slot_ids[layer], kv_TE)
    if isinstance(batch, DeviceBatch):
        return attend_on_device(layer, q_TNH, cache, batch, form)
    num_kv_heads, fp8 = cache.shape.num_kv_heads, cache.shape.fp8
    parts = [
        decode_attention(
            q_TNH[group.first : group.end],
            cache.rows_XE,
            group.row_ids[layer],
            group.mask_B11L,
            num_kv_heads,
            form,
            fp8,
        )
        for group in batch.groups
    ]
    parts.extend(
        prefill_attention(
            q_TNH[chunk.first : chunk.end],
            cache.rows_XE,
            chunk.row_ids[layer],
            chunk.tiles,
            num_kv_heads,
            form,
            fp8,
        )
        for chunk in batch.chunks
    )
    return parts[0] if len(parts) == 1 else torch.cat(parts)
