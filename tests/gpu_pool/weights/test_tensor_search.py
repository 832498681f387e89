"""Tensors are found wherever an object keeps them."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gpu_pool.weights.tensor_search import find_tensors


class Slotted:
    __slots__ = ("inner", "weight")

    def __init__(self, weight: Tensor, inner: object) -> None:
        self.weight = weight
        self.inner = inner


@dataclass(frozen=True, slots=True)
class Frozen:
    parts: tuple[Tensor, ...]
    by_name: dict[str, Tensor]

    def read(self) -> Tensor:
        return self.parts[0]


ELSEWHERE = torch.ones(3)


def test_all_places_are_searched_and_shared_memory_is_found_once() -> None:
    tensors = [torch.ones(size) for size in range(1, 8)]
    first, second, third, fourth, fifth, sixth, seventh = tensors

    def closes_over() -> Tensor:
        return fourth + ELSEWHERE

    frozen = Frozen((first, first.view(1, 1)), {"b": second})
    root = Slotted(third, [frozen.read, closes_over, partial(torch.add, fifth), {sixth: seventh}])
    found = {tensor.data_ptr() for tensor in find_tensors(root)}
    assert found == {tensor.data_ptr() for tensor in tensors}
    assert len(find_tensors(root)) == 7
    assert ELSEWHERE.data_ptr() not in found
