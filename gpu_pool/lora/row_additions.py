"""What adapters add to the rows of one step: y[rows] += B(A(x[rows])) · scale.

Products have nothing to add but inside `adding`. Rows are multiplied by the model's own kernels, so
that what a row gets depends on its neighbours no more than without adapters.
Shapes: T tokens of the step, M outputs and K inputs of a product. Read next: `loading`.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, overload

import torch
from torch import Tensor

from gpu_pool.kernels.device_values import to_device
from gpu_pool.layers.linear import Linear
from gpu_pool.lora.loading import LoadedAdapter, LowRankProduct
from gpu_pool.models.network import CausalModel

_ROWS_AT_ONCE: Final = 512
"""What is to be added takes memory beside the product: that of so many rows at most."""

AdaptedRows = tuple[LoadedAdapter, range]
"""Neighbouring rows of a step that are computed with one adapter."""
Rows = slice | Tensor


@contextmanager
def adding(
    model: CausalModel, parts: Sequence[AdaptedRows], device: torch.device
) -> Generator[None]:
    """Inside, the model's products add what the adapters of `parts`, in the order of the step, make
    of their rows. It is gone through part by part meanwhile: a call that takes all at once would
    know nothing of adapters.
    """
    additions: dict[Linear, list[tuple[LowRankProduct, list[Rows]]]] = {}
    for adapter, rows in _join_rows(parts, device):
        assert not adapter.is_dropped, "the adapter was dropped, and is computed with"
        for product, made in adapter.products.items():
            additions.setdefault(product, []).append((made, rows))
    passage = model.passage
    model.passage = _PartByPart(passage)
    for product, added in additions.items():
        product.added = _Additions(added)
    try:
        yield
    finally:
        for product in additions:
            product.added = None
        model.passage = passage


class _Additions:
    """What is added to one product in one step."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[tuple[LowRankProduct, list[Rows]]]) -> None:
        """What each adapter makes, and of which rows."""
        self._parts = parts

    def __call__(self, x_TK: Tensor, y_TM: Tensor) -> None:
        """Adds it."""
        for product, pieces in self._parts:
            for rows in pieces:
                if isinstance(rows, slice):
                    product.add(x_TK[rows], y_TM[rows])
                else:
                    y_TM.index_add_(0, rows, product.make(x_TK.index_select(0, rows), y_TM))


def _join_rows(
    parts: Sequence[AdaptedRows], device: torch.device
) -> list[tuple[LoadedAdapter, list[Rows]]]:
    """The rows of each adapter: as stretches where they are neighbours, else by their numbers."""
    stretches: dict[int, tuple[LoadedAdapter, list[range]]] = {}
    for adapter, rows in parts:
        _, found = stretches.setdefault(id(adapter), (adapter, []))
        if found and found[-1].stop == rows.start:
            found[-1] = range(found[-1].start, rows.stop)
        else:
            found.append(rows)
    return [(adapter, _cut(found, device)) for adapter, found in stretches.values()]


def _cut(stretches: Sequence[range], device: torch.device) -> list[Rows]:
    """Rows in pieces of at most `_ROWS_AT_ONCE`."""
    if len(stretches) == 1:
        (rows,) = stretches
        firsts = range(rows.start, rows.stop, _ROWS_AT_ONCE)
        return [slice(first, min(first + _ROWS_AT_ONCE, rows.stop)) for first in firsts]
    numbers = [row for rows in stretches for row in rows]
    return [
        to_device(numbers[first : first + _ROWS_AT_ONCE], torch.int64, device)
        for first in range(0, len(numbers), _ROWS_AT_ONCE)
    ]


class _PartByPart(Sequence[Any]):
    """The same parts, of which nobody knows but who goes through them one by one."""

    def __init__(self, parts: Sequence[Any]) -> None:
        """`parts` may wait for what they lead to, one after the other."""
        self._parts = parts

    def __len__(self) -> int:
        """As many."""
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """The same part."""
        return self._parts[index]

    def __iter__(self) -> Iterator[Any]:
        """The same parts, in order."""
        return iter(self._parts)
