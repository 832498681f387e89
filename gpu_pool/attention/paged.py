"""One layer's attention over a mixed batch: write the step's keys and values, then attend.

Shapes: T tokens, N query heads, K KV heads, H head dim, E = 2 · K · H.
"""

import torch
from torch import Tensor

from gpu_pool.attention.batch import AttentionBatch
from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.kernels.decode_attention import decode_attention
from gpu_pool.kernels.kv_write import kv_write
from gpu_pool.kernels.prefill_attention import prefill_attention


def attend(
    layer: int, q_TNH: Tensor, kv_TE: Tensor, cache: KvCache, batch: AttentionBatch
) -> Tensor:
    """The mixed values `[T, N, H]` of all tokens; `kv_TE` is in the cache afterwards."""
    kv_write(cache.slots_XE, batch.slot_ids[layer], kv_TE)
    num_kv_heads = cache.shape.num_kv_heads
    parts = [
        decode_attention(
            q_TNH[group.first : group.end],
            cache.rows_XE,
            group.row_ids[layer],
            group.mask_B11L,
            num_kv_heads,
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
        )
        for chunk in batch.chunks
    )
    return parts[0] if len(parts) == 1 else torch.cat(parts)
