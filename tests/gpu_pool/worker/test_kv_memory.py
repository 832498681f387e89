"""How many KV blocks a worker takes."""

from pathlib import Path

import pytest
import torch

from contracts.settings import SettingsError
from gpu_pool.worker.kv_memory import count_blocks, share_memory
from gpu_pool.worker.settings import WorkerSettings

CPU = torch.device("cpu")


def settings(*, kv_bytes: int | None = None, num_blocks: int | None = None) -> WorkerSettings:
    """Settings with a KV size."""
    return WorkerSettings(model_dir=Path(), kv_bytes=kv_bytes, num_blocks=num_blocks)


def test_bytes_are_divided_into_whole_blocks() -> None:
    assert count_blocks(settings(kv_bytes=1000), 300, CPU, 0) == 3


def test_a_number_of_blocks_decides_over_bytes() -> None:
    assert count_blocks(settings(kv_bytes=1000, num_blocks=7), 300, CPU, 0) == 7


def test_without_either_a_share_of_the_free_memory_is_taken() -> None:
    block_bytes = 1 << 20
    assert 1 <= count_blocks(settings(), block_bytes, CPU, 0) <= 4096


@pytest.mark.parametrize("asked", [settings(kv_bytes=299), settings(num_blocks=0)])
def test_room_for_no_block_is_refused(asked: WorkerSettings) -> None:
    with pytest.raises(SettingsError, match="kv_bytes"):
        count_blocks(asked, 300, CPU, 0)


def test_a_gpu_gives_all_but_weights_and_a_reserve_where_steps_are_not_measured() -> None:
    gib = 1 << 30
    device = torch.device("cuda")
    assert share_memory(120 * gib, 16 * gib, device, is_measured=True) == (120 - 16) * gib
    assert share_memory(120 * gib, 16 * gib, torch.device("cuda")) == (120 - 10 - 16) * gib
    assert share_memory(12 * gib, 16 * gib, torch.device("cuda")) == 0
    assert share_memory(120 * gib, 16 * gib, CPU) == 4 * gib
