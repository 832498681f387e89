"""From an adapter's file to matrices in the form that the model's own kernels multiply.

Owns the arithmetic: `scale` goes into B before it is rounded to the model's dtype. Whatever a file
holds, the worst that comes of it is a refusal. Must not know threads or room.
Shapes: M outputs, K inputs, R ranks of all pairs of a product. Read next: `row_additions`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import torch
from torch import Tensor

from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.linear import Weight, linear, measure_weight, pack_weight, packing_with
from gpu_pool.layers.linear import Linear
from gpu_pool.lora.adapter_file import quote, read_pairs, refuse
from gpu_pool.lora.products import AdaptedProduct, ModelProducts
from gpu_pool.plan import AdapterFile
from gpu_pool.weights.header import TensorEntry

_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """B(A(x)), the scale included; B is a matrix for each piece of the outputs that it has."""

    a: Weight
    pieces: tuple[tuple[range, range, Weight], ...]
    """Outputs, ranks and the matrix between them."""

    def add(self, x_TK: Tensor, y_TM: Tensor) -> None:
        """Adds the product of some rows to what the model itself has made of them."""
        inner_TR = linear(x_TK, self.a)
        for outputs, ranks, b in self.pieces:
            part_TR = inner_TR if len(ranks) == inner_TR.shape[1] else inner_TR[:, _cut(ranks)]
            y_TM[:, _cut(outputs)] += linear(part_TR, b)

    def make(self, x_TK: Tensor, y_TM: Tensor) -> Tensor:
        """As `add`, of which `y_TM` only says the shape; zeros where it adds nothing."""
        added_TM = torch.zeros((len(x_TK), y_TM.shape[1]), dtype=y_TM.dtype, device=y_TM.device)
        self.add(x_TK, added_TM)
        return added_TM


class LoadedAdapter:
    """An adapter whose matrices are on the model's device."""

    __slots__ = ("is_dropped", "num_bytes", "products")

    def __init__(self, products: Mapping[Linear, LowRankProduct], num_bytes: int) -> None:
        """`products` by what they are added to."""
        self.products = dict(products)
        self.num_bytes = num_bytes
        self.is_dropped = False

    def drop(self) -> None:
        """Frees its memory, whoever refers to it still: nobody computes with it any more."""
        self.products.clear()
        self.is_dropped = True


class AdapterLoading:
    """Loads adapters of one model, or one rank's part of them. Any thread may; none changes it."""

    def __init__(
        self,
        products: ModelProducts,
        *,
        dtype: torch.dtype,
        device: torch.device,
        kernels: NativeKernels | None,
        max_rank: int,
    ) -> None:
        """Takes what the model was loaded with."""
        self._products = products
        self._dtype = dtype
        self._device = device
        self._kernels = kernels
        self._max_rank = max_rank

    def measure(self, adapter: AdapterFile) -> int:
        """Bytes that it takes once it is loaded; only its header is read.

        Raises: `AdapterUnsupported`; `OSError` where there is no file.
        """
        with packing_with(self._kernels):
            return sum(map(self._measure_product, self._place(adapter)))

    @torch.inference_mode()
    def load(self, adapter: AdapterFile) -> LoadedAdapter:
        """The adapter.

        Raises: `AdapterUnsupported`, also for values that are no numbers; `OSError`.
        """
        placed = self._place(adapter)
        with packing_with(self._kernels), Path(adapter.path).open("rb") as file:
            products = {one.linear: self._load_product(file, one, adapter.scale) for one in placed}
            return LoadedAdapter(products, sum(map(self._measure_product, placed)))

    def _place(self, adapter: AdapterFile) -> list[AdaptedProduct]:
        """What it changes here. Raises: as `measure`."""
        if not math.isfinite(adapter.scale):
            raise refuse("its scale is no number")
        return self._products.place(read_pairs(Path(adapter.path), self._max_rank))

    def _measure_product(self, product: AdaptedProduct) -> int:
        """Bytes of the matrices of one product."""
        num_bytes = measure_weight(product.num_ranks, product.num_inputs, self._dtype)
        return num_bytes + sum(
            measure_weight(len(outputs), len(ranks), self._dtype)
            for outputs, ranks in product.pieces
        )

    def _load_product(
        self, file: IO[bytes], product: AdaptedProduct, scale: float
    ) -> LowRankProduct:
        """The matrices of one product."""
        a_RK = torch.empty((product.num_ranks, product.num_inputs))
        b_MR = torch.zeros((product.num_outputs, product.num_ranks))
        for one in product.placed:
            a, b = _read(file, one.pair.a), _read(file, one.pair.b) * scale
            a_RK[_cut(one.ranks)] = a if one.inputs is None else a[:, _cut(one.inputs)]
            b = b if one.outputs is None else b[_cut(one.outputs)]
            b = b if one.part.arrange is None else one.part.arrange(b)
            b_MR[_cut(one.rows), _cut(one.ranks)] = self._require_numbers(b, one.pair.b.name)
        if product.linear.arrange is not None:
            b_MR = product.linear.arrange(b_MR)
        pieces = tuple(
            (outputs, ranks, self._pack(b_MR[_cut(outputs), _cut(ranks)]))
            for outputs, ranks in product.pieces
        )
        return LowRankProduct(self._pack(a_RK), pieces)

    def _require_numbers(self, scaled: Tensor, name: str) -> Tensor:
        """The tensor. Raises: `AdapterUnsupported` where the scale has made it too large."""
        if not bool(scaled.to(self._dtype).isfinite().all()):
            raise refuse(f"{quote(name)} is too large by its scale")
        return scaled

    def _pack(self, matrix: Tensor) -> Weight:
        """A matrix as the device multiplies it."""
        return pack_weight(matrix.to(self._dtype).to(self._device).contiguous())


def _read(file: IO[bytes], entry: TensorEntry) -> Tensor:
    """A tensor in fp32. Raises: `AdapterUnsupported` where it is not there, or no numbers."""
    file.seek(entry.offset)
    content = bytearray(file.read(entry.num_bytes))
    if len(content) < entry.num_bytes:
        raise refuse("its file is malformed: it was cut while it was read")
    tensor = torch.frombuffer(content, dtype=_DTYPES[entry.dtype]).view(entry.shape).float()
    if not bool(tensor.isfinite().all()):
        raise refuse(f"{quote(entry.name)} holds what is no number, or no finite one")
    return tensor


def _cut(places: range) -> slice:
    """The same places."""
    return slice(places.start, places.stop)
