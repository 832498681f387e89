"""A mixed batch as a GPU's kernels read it: tables and lengths on the device, no masks.

The counterpart of `batch` for devices with triton: decodes go to the kernel that splits long
contexts, chunks to the one that tiles queries. Must not know sequences or plans.
Shapes: T tokens of the step, B single tokens, C blocks of the longest table, N query heads, K KV
heads, H head dim. Read next: `gpu_pool.kernels.split_decode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span, locate_tokens
from gpu_pool.attention.kv_cache import Int64Array, KvCache
from gpu_pool.attention.reach import Reach
from gpu_pool.attention.whole_prompts import (
    WHOLE_PROMPTS,
    attend_to_whole_prompts,
    should_be_whole,
)
from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.device_values import send
from gpu_pool.kernels.latent_attention import latent_attention
from gpu_pool.kernels.latent_decode import latent_decode
from gpu_pool.kernels.paged_attention import (
    PagedBatch,
    PagedLayout,
    choose_tile_tokens,
    find_tile_rows,
    list_tiles,
    paged_attention,
)
from gpu_pool.kernels.split_decode import split_decode
from gpu_pool.kernels.split_plan import SplitPlan, plan_splits
from gpu_pool.plan import KvGroupKind


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The step's single tokens, which come first. Tables and lengths are int32."""

    tables_BC: Tensor
    lengths_B: Tensor
    plan: SplitPlan


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The step's chunks, behind the single tokens."""

    tables_BC: Tensor
    starts_B: Tensor
    lengths_B: Tensor
    num_tokens: tuple[int, ...]
    """Of each chunk; tiles are cut from it once the number of heads is known."""
    are_whole: bool
    """All chunks are prompts from their first token on."""
    tiled: dict[int, PagedBatch] = field(default_factory=dict[int, PagedBatch])
    """By the tokens of a tile: the first layer cuts, the others find it here."""


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
        lengths_B = _to_device(np.array(lengths), device)
        decodes = plan_decodes(_to_device(tables, device), lengths_B, max(lengths), reach)
    if chunked:
        lengths = [span.end for span in chunked]
        num_tokens = tuple(span.num_tokens for span in chunked)
        chunks = ChunkRows(
            _to_device(_stack_tables(chunked, max(lengths), cache), device),
            _to_device(np.cumsum([0, *num_tokens]), device),
            _to_device(np.array(lengths), device),
            num_tokens,
            are_whole=all(span.start == 0 for span in chunked),
        )
    return DeviceBatch(locate_tokens(spans, cache), reach, num_decodes, decodes, chunks)


def plan_decodes(tables_BC: Tensor, lengths_B: Tensor, max_length: int, reach: Reach) -> DecodeRows:
    """Single tokens, each the last of its context; no length is above `max_length`."""
    plan = plan_splits(lengths_B, max_length, reach.num_tokens or 0, _is_chunked(reach))
    return DecodeRows(tables_BC, lengths_B, plan)


def attend_on_device(
    layer: int,
    q_TNH: Tensor,
    cache: KvCache,
    batch: DeviceBatch,
    form: AttentionForm,
) -> Tensor:
    """The mixed values `[T, N, H]` of all tokens, whose keys and values have been written."""
    layout = _create_layout(layer, q_TNH.shape[2], cache, batch.reach, form)
    parts: list[Tensor] = []
    if batch.decodes is not None:
        q_BNH = q_TNH[: batch.num_decodes]
        parts.append(_decode(q_BNH, cache.slots_XE, batch.decodes, layout, form))
    if batch.chunks is not None:
        q_CNH = q_TNH[batch.num_decodes :]
        slot_ids_C = batch.slot_ids[layer, batch.num_decodes :]
        parts.append(_prefill(q_CNH, cache.slots_XE, slot_ids_C, batch.chunks, layout, form))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    q_BNH: Tensor, slots_XE: Tensor, rows: DecodeRows, layout: PagedLayout, form: AttentionForm
) -> Tensor:
    """The mixed values of the single tokens."""
    arguments = (q_BNH, slots_XE, rows.tables_BC, rows.lengths_B, rows.plan, layout)
    if form.value_dim is not None:
        return latent_decode(*arguments, form.value_dim)
    return split_decode(*arguments)


def _prefill(
    q_TNH: Tensor,
    slots_XE: Tensor,
    slot_ids_T: Tensor,
    chunks: ChunkRows,
    layout: PagedLayout,
    form: AttentionForm,
) -> Tensor:
    """The mixed values of the chunks' tokens, whose own keys and values are at `slot_ids_T`."""
    if _prefers_torch(q_TNH, chunks, layout, form):
        kv_TE = slots_XE.index_select(0, slot_ids_T)
        return attend_to_whole_prompts(q_TNH, kv_TE, chunks.num_tokens, layout)
    num_shared = q_TNH.shape[1] // layout.num_kv_heads
    if form.value_dim is not None:
        tiled = _cut_tiles(chunks, num_shared)
        return latent_attention(q_TNH, slots_XE, tiled, layout, form.value_dim)
    tiled = _cut_tiles(chunks, num_shared, find_tile_rows(q_TNH, layout))
    return paged_attention(q_TNH, slots_XE, tiled, layout)


def _prefers_torch(
    q_TNH: Tensor, chunks: ChunkRows, layout: PagedLayout, form: AttentionForm
) -> bool:
    """Torch's own attention computes the chunks, and faster."""
    if not chunks.are_whole or form.value_dim is not None:
        return False
    return should_be_whole(WHOLE_PROMPTS, q_TNH, layout, chunks.num_tokens)


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
        is_chunked=_is_chunked(reach),
        soft_cap=form.softcap or 0.0,
        sinks_N=form.sinks_N,
        fp8=cache.shape.fp8,
    )


def _is_chunked(reach: Reach) -> bool:
    """True where the window does not slide."""
    return reach.kind is KvGroupKind.CHUNKED


def _cut_tiles(chunks: ChunkRows, num_shared: int, most_rows: int = 64) -> PagedBatch:
    """The chunks as the kernel's work list, for heads of which `num_shared` share a KV head."""
    tile_tokens = choose_tile_tokens(num_shared, max(chunks.num_tokens), most_rows)
    found = chunks.tiled.get(tile_tokens)
    if found is None:
        sequences, firsts = list_tiles(list(chunks.num_tokens), tile_tokens)
        device = chunks.tables_BC.device
        chunks.tiled[tile_tokens] = found = PagedBatch(
            chunks.tables_BC,
            chunks.starts_B,
            chunks.lengths_B,
            _to_device(np.array(sequences), device),
            _to_device(np.array(firsts), device),
            tile_tokens,
        )
    return found


def _stack_tables(spans: Sequence[Span], longest: int, cache: KvCache) -> Int64Array:
    """Block tables as far as the longest context goes, `[B, C]`."""
    num_blocks = -(-longest // cache.shape.block_size)
    return np.stack([span.block_table[:num_blocks] for span in spans])


def _to_device(values: Int64Array, device: torch.device) -> Tensor:
    """The numbers as int32 on the device."""
    return send(torch.from_numpy(values.astype(np.int32)), device)
