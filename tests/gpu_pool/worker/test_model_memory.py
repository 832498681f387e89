"""Where parameters come to lie while a model is loaded."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.linear import linear, pack_weight
from gpu_pool.worker.model_memory import CpuPlaces, PlainPlaces, fill_rows
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.fixtures.one_cpu import needs_cpus, one_cpu
from tests.gpu_pool.tiny_llama import write_tiny_llama

__all__ = ["one_cpu"]


def test_parts_become_one_tensor() -> None:
    parts = [torch.full((rows, 3), float(rows)) for rows in (2, 1, 4)]
    for join in (CpuPlaces().join, PlainPlaces(torch.device("cpu")).join):
        assert torch.equal(join(iter(parts), 7), torch.cat(parts))
    assert CpuPlaces().join(iter(parts[:1]), 2) is parts[0]


def test_what_was_joined_in_serves_again_once_the_whole_is_gone() -> None:
    places, parts = CpuPlaces(), [torch.ones(512, 1024), torch.zeros(256, 1024)]
    first, second = (places.join(iter(parts), 768) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    address, kept = first.data_ptr(), second.clone()
    row = first[7:8]
    del first
    third = places.join(iter(parts), 768)
    assert third.data_ptr() != address  # a row of it is still looked at
    del row
    fourth = places.join(iter(parts[::-1]), 768)
    assert fourth.data_ptr() == address
    assert torch.equal(second, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1 << 19), (1 << 19, 1), (512, 1024)], ids=str)
def test_a_packed_weight_does_not_lie_in_what_serves_again(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    places, parts = CpuPlaces(), list(torch.randn(1 << 19, 1).to(dtype).chunk(2))
    plain = places.join(iter(parts), 1 << 19)
    address, packed = plain.data_ptr(), pack_weight(plain.view(shape))
    x_TK = torch.randn(3, shape[1]).to(dtype)
    expected = linear(x_TK, packed)
    del plain
    garbage = places.join(iter([torch.full_like(part, float("nan")) for part in parts]), 1 << 19)
    assert (garbage.data_ptr() == address) != isinstance(packed, Tensor)  # the control
    assert torch.equal(linear(x_TK, packed), expected)


def test_a_part_is_gone_before_the_next_is_read() -> None:
    seen: list[ref[Tensor]] = []

    def read() -> Iterator[Tensor]:
        for rows in (2, 1, 4):
            assert not any(part() is not None for part in seen)
            part = torch.ones(rows, 3)
            seen.append(ref(part))
            yield part
            del part

    for join in (partial(fill_rows, torch.zeros), CpuPlaces().join):
        assert join(read(), 7).sum() == 21


def test_missing_rows_are_noticed() -> None:
    with pytest.raises(AssertionError, match="announced"):
        fill_rows(partial(torch.zeros), iter([torch.ones(2, 3)]), 3)


@needs_cpus
@pytest.mark.usefixtures("one_cpu")
def test_as_many_threads_bring_weights_back_as_the_process_may_use_cpus(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    executor: Any = create_executor(WorkerSettings(model_dir=tmp_path, num_threads=1))
    assert executor._memory._weights._num_threads == 1
