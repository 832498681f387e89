"""A mixed batch as a GPU's kernels read it: tables and lengths on the device, no masks.

The counterpart of `batch` for devices with triton: decodes go to the kernel that splits long
contexts, chunks to the one that tiles queries. Must not know sequences or plans.
Shapes: T tokens of the step, B single tokens, C blocks of the longest table, N query heads, K KV
heads, H head dim, E = 2 · K · H. Read next: `gpu_pool.kernels.split_decode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span, locate_tokens
from gpu_pool.attention.kv_cache import Int64Array, KvCache
from gpu_pool.attention.reach import Reach
from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.kv_write import kv_write
from gpu_pool.kernels.paged_attention import (
    PagedBatch,
    PagedLayout,
    choose_tile_tokens,
    list_tiles,
    paged_attention,
)
from gpu_pool.kernels.split_decode import split_decode
from gpu_pool.plan import KvGroupKind


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The step's single tokens, which come first. Both tensors are int32."""

    tables_BC: Tensor
    lengths_B: Tensor
    max_length: int
    """No context is longer; decides how many splits are launched."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The step's chunks, behind the single tokens."""

    tables_BC: Tensor
    starts_B: Tensor
    lengths_B: Tensor
    num_tokens: tuple[int, ...]
    """Of each chunk; tiles are cut from it once the number of heads is known."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A whole step of one KV group."""

    slot_ids: Tensor
    """`[layers, T]`, where each token's keys and values go."""
    reach: Reach
    num_decodes: int
    decodes: DecodeRows | None
    chunks: ChunkRows | None


def create_device_batch(spans: Sequence[Span], cache: KvCache, reach: Reach) -> DeviceBatch:
    """The batch of `spans`, decodes first."""
    num_decodes = sum(span.is_decode for span in spans)
    decoding, chunked = spans[:num_decodes], spans[num_decodes:]
    device = cache.blocks.device
    decodes = chunks = None
    if decoding:
        lengths = [span.end for span in decoding]
        tables = _stack_tables(decoding, max(lengths), cache)
        decodes = DecodeRows(
            _to_device(tables, device), _to_device(np.array(lengths), device), max(lengths)
        )
    if chunked:
        lengths = [span.end for span in chunked]
        num_tokens = tuple(span.num_tokens for span in chunked)
        chunks = ChunkRows(
            _to_device(_stack_tables(chunked, max(lengths), cache), device),
            _to_device(np.cumsum([0, *num_tokens]), device),
            _to_device(np.array(lengths), device),
            num_tokens,
        )
    return DeviceBatch(locate_tokens(spans, cache), reach, num_decodes, decodes, chunks)


def attend_on_device(
    layer: int,
    q_TNH: Tensor,
    kv_TE: Tensor,
    cache: KvCache,
    batch: DeviceBatch,
    form: AttentionForm,
) -> Tensor:
    """The mixed values `[T, N, H]` of all tokens; `kv_TE` is in the cache afterwards."""
    assert form.value_dim is None, "values inside the keys have no kernel yet"
    kv_write(cache.slots_XE, batch.slot_ids[layer], kv_TE)
    layout = _create_layout(layer, q_TNH.shape[2], cache, batch.reach, form)
    parts: list[Tensor] = []
    if batch.decodes is not None:
        rows = batch.decodes
        parts.append(
            split_decode(
                q_TNH[: batch.num_decodes],
                cache.slots_XE,
                rows.tables_BC,
                rows.lengths_B,
                layout,
                rows.max_length,
            )
        )
    if batch.chunks is not None:
        tiled = _cut_tiles(batch.chunks, q_TNH.shape[1] // cache.shape.num_kv_heads)
        parts.append(paged_attention(q_TNH[batch.num_decodes :], cache.slots_XE, tiled, layout))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _create_layout(
    layer: int, head_dim: int, cache: KvCache, reach: Reach, form: AttentionForm
) -> PagedLayout:
    """Where and how one layer attends."""
    return PagedLayout(
        layer=layer,
        num_layers=cache.shape.num_layers,
        block_size=cache.shape.block_size,
        num_kv_heads=cache.shape.num_kv_heads,
        scale=form.scale or head_dim**-0.5,
        window=reach.num_tokens or 0,
        is_chunked=reach.kind is KvGroupKind.CHUNKED,
        soft_cap=form.softcap or 0.0,
        sinks_N=form.sinks_N,
    )


def _cut_tiles(chunks: ChunkRows, num_shared: int) -> PagedBatch:
    """The chunks as the kernel's work list, for heads of which `num_shared` share a KV head."""
    tile_tokens = choose_tile_tokens(num_shared, max(chunks.num_tokens))
    sequences, firsts = list_tiles(list(chunks.num_tokens), tile_tokens)
    device = chunks.tables_BC.device
    return PagedBatch(
        chunks.tables_BC,
        chunks.starts_B,
        chunks.lengths_B,
        torch.tensor(sequences, dtype=torch.int32, device=device),
        torch.tensor(firsts, dtype=torch.int32, device=device),
        tile_tokens,
    )


def _stack_tables(spans: Sequence[Span], longest: int, cache: KvCache) -> Int64Array:
    """Block tables as far as the longest context goes, `[B, C]`."""
    num_blocks = -(-longest // cache.shape.block_size)
    return np.stack([span.block_table[:num_blocks] for span in spans])


def _to_device(values: Int64Array, device: torch.device) -> Tensor:
    """The numbers as int32 on the device."""
    return torch.from_numpy(values.astype(np.int32)).to(device)
