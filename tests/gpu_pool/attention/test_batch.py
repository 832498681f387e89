"""How spans become groups, chunks and tiles."""

import numpy as np
import torch

from gpu_pool.attention.batch import Span, create_attention_batch, order_key
from gpu_pool.attention.kv_cache import KvCache, KvShape


def span(start: int, num_tokens: int) -> Span:
    """A span over the blocks 0, 1, 2, …."""
    return Span(start, num_tokens, np.minimum(np.arange(64), (start + num_tokens - 1) // 16))


def create_cache() -> KvCache:
    """A small cache."""
    return KvCache(KvShape(2, 16, 1, 4), 64, torch.float32, torch.device("cpu"))


def test_decodes_come_first_and_those_of_like_length_share_a_group() -> None:
    spans = sorted([span(0, 40), span(100, 1), span(3, 1), span(90, 1), span(9, 1)], key=order_key)
    assert [s.start for s in spans] == [3, 9, 90, 100, 0]
    batch = create_attention_batch(spans, create_cache())
    assert [(g.first, g.end) for g in batch.groups] == [(0, 2), (2, 4)]
    assert [(c.first, c.end) for c in batch.chunks] == [(4, 44)]
    assert batch.slot_ids.shape == (2, 44)


def test_a_group_masks_what_lies_behind_each_context() -> None:
    batch = create_attention_batch([span(3, 1), span(9, 1)], create_cache())
    visible = batch.groups[0].mask_B11L.isfinite().sum(-1).flatten()
    assert visible.tolist() == [4, 10]


def test_tiles_end_at_fixed_positions_wherever_the_chunk_starts() -> None:
    batch = create_attention_batch([span(200, 400)], create_cache())
    tiles = batch.chunks[0].tiles
    assert [(200 + tile.first, 200 + tile.end) for tile in tiles] == [
        (200, 256),
        (256, 512),
        (512, 600),
    ]
    assert [tuple(tile.mask_TL.shape) for tile in tiles] == [(56, 384), (256, 512), (88, 640)]


def test_a_tile_is_causal() -> None:
    mask = create_attention_batch([span(2, 3)], create_cache()).chunks[0].tiles[0].mask_TL
    assert mask.isfinite().sum(-1).tolist() == [3, 4, 5, 6]
