"""Blocks that move to the host and back: every byte in its place, nothing left behind."""

import pytest
import torch

from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.attention.reach import FULL_REACH
from gpu_pool.plan import BlockId, BlockMove, HostBlockId
from gpu_pool.runner import group_blocks
from gpu_pool.runner.group_blocks import GroupBlocks, KvGroupMemory
from gpu_pool.runner.host_blocks import find_runs

SHAPE = KvShape(num_layers=2, block_size=16, num_kv_heads=1, head_dim=8)


@pytest.mark.parametrize("num_staged", [0, 1, 2, 100])
def test_blocks_come_back_as_they_went(num_staged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By way of so many that lie together; 0: straight, as within a CPU's memory."""
    block_bytes = SHAPE.block_bytes(torch.float32)
    monkeypatch.setattr(group_blocks, "_STAGED_BYTES", num_staged * block_bytes)
    cache = KvCache(SHAPE, 6, torch.float32)
    cache.blocks.copy_(torch.randn(cache.blocks.shape))
    before = cache.blocks.clone()
    blocks = GroupBlocks(KvGroupMemory(cache, FULL_REACH, num_host_blocks=9))
    assert not blocks._is_staged
    blocks._is_staged = num_staged > 0
    places = {0: 5, 4: 2, 1: 3, 2: 8}
    moves = [BlockMove(0, BlockId(block), HostBlockId(host)) for block, host in places.items()]
    blocks.move_out(moves)
    host = torch.frombuffer(blocks.host_memory.buffer, dtype=torch.float32).view(9, -1)
    for block, place in places.items():
        assert torch.equal(host[place], before[block].flatten())
    assert not host[[0, 1, 4, 6, 7]].any()
    cache.blocks.zero_()
    blocks.move_in(
        [BlockMove(0, BlockId(5), HostBlockId(5)), BlockMove(0, BlockId(3), HostBlockId(8))]
    )
    assert torch.equal(cache.blocks[5], before[0])
    assert torch.equal(cache.blocks[3], before[2])
    assert not cache.blocks[[0, 1, 2, 4]].any()
    assert not host[[5, 8]].any()
    assert torch.equal(host[2], before[4].flatten())
    blocks.close()


def test_ids_that_follow_one_another_are_one_run() -> None:
    assert list(find_runs([])) == []
    assert list(find_runs([4])) == [(0, 4, 1)]
    assert list(find_runs([1, 2, 3, 7, 9, 10])) == [(0, 1, 3), (3, 7, 1), (4, 9, 2)]
