"""The KV memory's layout."""

import numpy as np
import torch

from gpu_pool.attention.kv_cache import KvCache, KvShape

SHAPE = KvShape(num_layers=3, block_size=16, num_kv_heads=2, head_dim=4)


def test_a_block_is_one_contiguous_piece_of_the_declared_size() -> None:
    cache = KvCache(SHAPE, 5, torch.bfloat16, torch.device("cpu"))
    assert cache.blocks[2].is_contiguous()
    assert cache.blocks[2].nbytes == SHAPE.block_bytes(torch.bfloat16)
    assert cache.blocks.nbytes == 5 * SHAPE.block_bytes(torch.bfloat16)


def test_row_ids_name_a_layer_of_a_block() -> None:
    cache = KvCache(SHAPE, 5, torch.float32, torch.device("cpu"))
    cache.blocks[4, 2] = 7
    rows = cache.to_row_ids(np.array([0, 4]))
    assert rows.shape == (3, 2)
    assert cache.rows_XE[rows[2, 1]].eq(7).all()
    assert not cache.rows_XE[rows[1, 1]].any()
    assert not cache.rows_XE[rows[2, 0]].any()


def test_slot_ids_name_a_token_of_a_layer() -> None:
    cache = KvCache(SHAPE, 5, torch.float32, torch.device("cpu"))
    cache.blocks[3, 1, 9] = 7
    slots = cache.to_slot_ids(np.array([3]), np.array([9]))
    assert cache.slots_XE[slots[1, 0]].eq(7).all()
    assert not cache.slots_XE[slots[0, 0]].any()


def test_clearing_zeroes_the_named_blocks_and_no_other() -> None:
    cache = KvCache(SHAPE, 4, torch.float32, torch.device("cpu"))
    cache.blocks.fill_(float("nan"))
    cache.clear(torch.tensor([1, 3]))
    assert not cache.blocks[[1, 3]].any()
    assert cache.blocks[[0, 2]].isnan().all()
