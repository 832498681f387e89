"""Who attends to what in one step: decode groups of like length, then prefill chunks.

Built once per step from block tables and used by every layer; must not know sequences or plans.
Shapes: T tokens of the step, B sequences of a group, C blocks (padded), L = C · block size.
What a token attends to, its padding and its left end included, is a function of its own position.
Read next: `paged`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.kv_cache import Int64Array, KvCache
from gpu_pool.attention.padding import SPLIT_TOKENS, pad_context
from gpu_pool.attention.reach import FULL_REACH, Reach
from gpu_pool.kernels.decode_attention import ROW_MULTIPLE
from gpu_pool.kernels.prefill_attention import AttentionTile

TILE_TOKENS: Final = 256
"""Queries of a prefill tile; tiles start at multiples of it, wherever the chunk starts."""
_GROUP_BYTES: Final = 4 << 20
"""KV that a decode group gathers at most (one sequence may take more): what stays in a CPU's cache
between gathering and attending; twice as fast as one large group."""
_SEEN: Final = np.float32(0)
_NEVER: Final = np.float32("-inf")


class Span(msgspec.Struct, frozen=True, eq=False):
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
    """Sorts spans into the order of a step: decodes by context, then chunks."""
    return (False, span.end) if span.is_decode else (True, 0)


def create_attention_batch(
    spans: Sequence[Span], cache: KvCache, reach: Reach = FULL_REACH
) -> AttentionBatch:
    """The batch of `spans`, which are sorted by `order_key`, for layers of that reach."""
    num_decodes = sum(span.is_decode for span in spans)
    groups: list[DecodeGroup] = []
    first = 0
    while first < num_decodes:
        groups.append(_create_group(first, spans[first:num_decodes], cache, reach))
        first = groups[-1].end
    chunks: list[PrefillChunk] = []
    for span in spans[num_decodes:]:
        chunks.append(_create_chunk(first, span, cache, reach))
        first = chunks[-1].end
    return AttentionBatch(locate_tokens(spans, cache), tuple(groups), tuple(chunks))


def _create_group(first: int, spans: Sequence[Span], cache: KvCache, reach: Reach) -> DecodeGroup:
    """Leading spans that read as many slots as the first does, as many as may share a group."""
    left, right = _find_extent(spans[0], reach)
    bytes_each = (right - left) * cache.shape.slot_elements * cache.dtype.itemsize
    spans = spans[: max(1, _GROUP_BYTES // bytes_each)]
    spans = [span for span in spans if _find_extent(span, reach) == (left, right)]
    size = cache.shape.block_size
    tables_BC = np.stack([span.block_table[left // size : right // size] for span in spans])
    positions_B = np.array([span.start for span in spans])
    mask_BL = _create_mask(positions_B, (left, right), cache, reach)
    return DecodeGroup(
        first, first + len(spans), cache.to_row_ids(tables_BC), mask_BL[:, None, None]
    )


def _create_chunk(first: int, span: Span, cache: KvCache, reach: Reach) -> PrefillChunk:
    """One chunk, cut where its positions cross a multiple of `TILE_TOKENS`."""
    tiles: list[AttentionTile] = []
    leftmost = _find_left(span.start, reach)
    start = span.start
    while start < span.end:
        end = min(span.end, start - start % TILE_TOKENS + TILE_TOKENS)
        num_rows = -(-(end - start) // ROW_MULTIPLE) * ROW_MULTIPLE
        left, right = _find_left(start, reach), pad_context(end)
        mask_TL = _create_mask(np.arange(start, start + num_rows), (left, right), cache, reach)
        tiles.append(AttentionTile(start - span.start, end - span.start, mask_TL, left - leftmost))
        start = end
    size = cache.shape.block_size
    table_C = span.block_table[leftmost // size : pad_context(span.end) // size]
    row_ids = cache.to_row_ids(table_C)
    return PrefillChunk(first, first + span.num_tokens, row_ids, tuple(tiles))


def _find_extent(span: Span, reach: Reach) -> tuple[int, int]:
    """The slots that a single token reads: the first one and the end."""
    return _find_left(span.start, reach), pad_context(span.end)


def _find_left(position: int, reach: Reach) -> int:
    """The first slot read for a token, the same for all of its tile so that sums agree."""
    if reach.num_tokens is None:
        return 0
    seen = int(reach.find_first(np.array(position - position % TILE_TOKENS)))
    return seen - seen % SPLIT_TOKENS


def _create_mask(
    positions_X: Int64Array, extent: tuple[int, int], cache: KvCache, reach: Reach
) -> Tensor:
    """0 for the slots that each row's token sees and -inf elsewhere, `[X, length]`."""
    slots_L = np.arange(*extent)
    is_hidden_XL = slots_L > positions_X[:, None]
    if reach.num_tokens is not None:
        is_hidden_XL |= slots_L < reach.find_first(positions_X)[:, None]
    mask_XL = np.where(is_hidden_XL, _NEVER, _SEEN)
    return torch.from_numpy(mask_XL).to(device=cache.blocks.device, dtype=cache.dtype)


def locate_tokens(spans: Sequence[Span], cache: KvCache) -> Tensor:
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
