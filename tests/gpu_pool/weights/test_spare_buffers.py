"""Buffers are used again, and never while somebody can see into them."""

import gc

import torch

from gpu_pool.weights.spare_buffers import SpareBuffers

SIZE = 2 << 20


def lend(buffers: SpareBuffers, value: int) -> torch.Tensor:
    buffer = buffers.take(SIZE)
    buffer[:] = bytes([value]) * len(buffer)
    return torch.frombuffer(buffers.lend(buffer, 100, SIZE - 100), dtype=torch.uint8)


def test_a_buffer_comes_again_only_when_the_last_look_into_it_is_gone() -> None:
    buffers = SpareBuffers(4 * SIZE)
    tensor = lend(buffers, 1)
    address = tensor.data_ptr()
    part = tensor[5:10].view(5, 1).t()
    del tensor
    gc.collect()
    other = lend(buffers, 2)
    assert other.data_ptr() != address
    assert part.tolist() == [[1] * 5]
    del part
    gc.collect()
    assert lend(buffers, 3).data_ptr() == address


def test_one_that_is_much_larger_than_what_is_asked_for_is_left_alone() -> None:
    buffers = SpareBuffers(4 * SIZE)
    address = lend(buffers, 1).data_ptr()
    small = torch.frombuffer(buffers.take(SIZE // 2), dtype=torch.uint8)
    assert small.data_ptr() != address - 100
    assert lend(buffers, 2).data_ptr() == address


def test_no_more_is_kept_than_was_allowed_and_nothing_after_the_end() -> None:
    buffers = SpareBuffers(SIZE)
    tensors = [lend(buffers, value) for value in range(3)]
    tensors.clear()
    gc.collect()
    assert buffers._num_bytes == SIZE  # type: ignore[reportPrivateUsage]
    held = lend(buffers, 1)
    buffers.close()
    del held
    assert buffers._spare == []  # type: ignore[reportPrivateUsage]
