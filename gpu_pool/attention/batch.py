"""Who attends to what in one step: decode groups of like length, then prefill chunks.

Built once per step from block tables and used by every layer; must not know sequences or plans.
Shapes: T tokens of the step, B sequences of a group, C blocks (padded), L = C · block size.
Read next: `paged`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.kv_cache import Int64Array, KvCache
from gpu_pool.attention.padding import pad_context
from gpu_pool.kernels.decode_attention import ROW_MULTIPLE
from gpu_pool.kernels.prefill_attention import AttentionTile

TILE_TOKENS: Final = 256
"""Queries of a prefill tile; tiles start at multiples of it, wherever the chunk starts."""
_GROUP_BYTES: Final = 4 << 20
"""KV that a decode group gathers at most (one sequence may take more): what stays in a CPU's cache
between gathering and attending; twice as fast as one large group."""
_SEEN: Final = np.float32(0)
_NEVER: Final = np.float32("-inf")


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence in this step: `num_tokens` from position `start` on."""

    start: int
    num_tokens: int
    block_table: Int64Array
    """Block ids by position, filled up with the last one as far as any padded context goes."""

    @property
    def end(self) -> int:
        """The position behind the last one; also the length of the context seen by it."""
        return self.start + self.num_tokens

    @property
    def is_decode(self) -> bool:
        """True for a single token, whichever phase it belongs to."""
        return self.num_tokens == 1


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Single tokens `first` to `end` of the step, whose contexts are padded to one length."""

    first: int
    end: int
    row_ids: Tensor
    """`[layers, B, C]`, ids into `KvCache.rows_XE`."""
    mask_B11L: Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens `first` to `end` of the step: a run of one sequence's prompt."""

    first: int
    end: int
    row_ids: Tensor
    """`[layers, C]`, ids into `KvCache.rows_XE`."""
    tiles: tuple[AttentionTile, ...]


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """A whole step. Groups and chunks cover its tokens in order."""

    slot_ids: Tensor
    """`[layers, T]`, where each token's keys and values go."""
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


def order_key(span: Span) -> tuple[bool, int]:
    """Sorts spans into the order of a step: decodes by padded context, then chunks."""
    return (False, pad_context(span.end)) if span.is_decode else (True, 0)


def create_attention_batch(spans: Sequence[Span], cache: KvCache) -> AttentionBatch:
    """The batch of `spans`, which are sorted by `order_key`."""
    num_decodes = sum(span.is_decode for span in spans)
    groups: list[DecodeGroup] = []
    first = 0
    while first < num_decodes:
        groups.append(_create_group(first, spans[first:num_decodes], cache))
        first = groups[-1].end
    chunks: list[PrefillChunk] = []
    for span in spans[num_decodes:]:
        chunks.append(_create_chunk(first, span, cache))
        first = chunks[-1].end
    return AttentionBatch(_locate_tokens(spans, cache), tuple(groups), tuple(chunks))


def _create_group(first: int, spans: Sequence[Span], cache: KvCache) -> DecodeGroup:
    """Leading spans whose padded context is that of the first, as many as may share a group."""
    length = pad_context(spans[0].end)
    bytes_each = length * cache.shape.slot_elements * cache.blocks.itemsize
    spans = spans[: max(1, _GROUP_BYTES // bytes_each)]
    spans = [span for span in spans if pad_context(span.end) == length]
    num_blocks = length // cache.shape.block_size
    tables_BC = np.stack([span.block_table[:num_blocks] for span in spans])
    positions_B = np.array([span.start for span in spans])
    mask_BL = _create_mask(positions_B, length, cache)
    return DecodeGroup(
        first, first + len(spans), cache.to_row_ids(tables_BC), mask_BL[:, None, None]
    )


def _create_chunk(first: int, span: Span, cache: KvCache) -> PrefillChunk:
    """One chunk, cut where its positions cross a multiple of `TILE_TOKENS`."""
    tiles: list[AttentionTile] = []
    start = span.start
    while start < span.end:
        end = min(span.end, start - start % TILE_TOKENS + TILE_TOKENS)
        num_rows = -(-(end - start) // ROW_MULTIPLE) * ROW_MULTIPLE
        mask_TL = _create_mask(np.arange(start, start + num_rows), pad_context(end), cache)
        tiles.append(AttentionTile(start - span.start, end - span.start, mask_TL))
        start = end
    table_C = span.block_table[: pad_context(span.end) // cache.shape.block_size]
    row_ids = cache.to_row_ids(table_C)
    return PrefillChunk(first, first + span.num_tokens, row_ids, tuple(tiles))


def _create_mask(positions_X: Int64Array, length: int, cache: KvCache) -> Tensor:
    """0 up to each row's position and -inf behind it, `[X, length]`."""
    is_later_XL = np.arange(length) > positions_X[:, None]
    mask_XL = np.where(is_later_XL, _NEVER, _SEEN)
    return torch.from_numpy(mask_XL).to(device=cache.blocks.device, dtype=cache.blocks.dtype)


def _locate_tokens(spans: Sequence[Span], cache: KvCache) -> Tensor:
    """Slot ids of all tokens, `[layers, T]`."""
    size = cache.shape.block_size
    block_ids: list[int] = []
    offsets: list[int] = []
    for span in spans:
        if span.is_decode:
            block_ids.append(int(span.block_table[span.start // size]))
            offsets.append(span.start % size)
        else:
            positions = np.arange(span.start, span.end)
            block_ids.extend(span.block_table[positions // size].tolist())
            offsets.extend((positions % size).tolist())
    return cache.to_slot_ids(np.array(block_ids), np.array(offsets))
