"""Writing keys and values into slots."""

import pytest
import torch

from gpu_pool.kernels.kv_write import kv_write


def test_each_token_goes_to_its_slot_and_no_other_slot_changes() -> None:
    slots = torch.zeros(10, 6)
    kv = torch.arange(1.0, 19.0).view(3, 6)
    kv_write(slots, torch.tensor([7, 0, 4]), kv)
    assert torch.equal(slots[torch.tensor([7, 0, 4])], kv)
    assert not slots[torch.tensor([1, 2, 3, 5, 6, 8, 9])].any()


def test_a_part_of_a_wider_product_can_be_written() -> None:
    slots, qkv = torch.zeros(4, 6, dtype=torch.bfloat16), torch.randn(2, 10).bfloat16()
    kv_write(slots, torch.tensor([3, 1]), qkv[:, 4:])
    assert torch.equal(slots[torch.tensor([3, 1])], qkv[:, 4:])


def test_a_missing_slot_is_refused() -> None:
    with pytest.raises(AssertionError, match="does not fit"):
        kv_write(torch.zeros(4, 6), torch.tensor([3]), torch.zeros(2, 6))
