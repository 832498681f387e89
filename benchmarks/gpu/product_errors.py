"""How far products on the device are from their references: experts, few rows, fp8.

Error is ‖out − ref‖ / ‖ref‖ with the reference in fp32. Read next: `kernels`, which reports it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from benchmarks.gpu.timing import DEVICE, IS_GPU
from gpu_pool.kernels.block_linear import block_linear_reference, block_linear_triton
from gpu_pool.kernels.descriptor_linear import (
    can_describe,
    descriptor_linear_reference,
    descriptor_linear_triton,
)
from gpu_pool.kernels.expert_order import (
    ExpertOrder,
    HeldExperts,
    order_by_expert_reference,
    order_by_expert_triton,
)
from gpu_pool.kernels.expert_sum import expert_sum_reference, expert_sum_triton
from gpu_pool.kernels.fp8_blocks import FP8, BlockScaledWeight
from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.grouped_linear import (
    ExpertProduct,
    choose_block_rows,
    gather_gated_reference,
    gather_gated_triton,
    scatter_product_reference,
    scatter_product_triton,
)
from gpu_pool.kernels.small_linear import small_linear_reference, small_linear_triton

_HELD = HeldExperts(0, 16, 16)
_NUM_CHOSEN = 4
_HIDDEN, _INNER = (1024, 768) if IS_GPU else (64, 48)
_OUTPUTS = 1000

MeasureError = Callable[[], float]
"""Computes by a kernel and by its reference, and tells how far apart they are."""


def list_product_errors(dtype: torch.dtype) -> dict[str, MeasureError]:
    """What tells the relative error of every product."""
    found: dict[str, MeasureError] = {}
    for num_tokens in (1, 37, 700) if IS_GPU else (1, 5):
        for name, measure in _EXPERT_ERRORS.items():
            found[f"{name} {num_tokens}"] = partial(measure, num_tokens, dtype)
    for num_rows in (1, 2, 5, 64) if IS_GPU else (2,):
        found[f"small_linear {num_rows}"] = partial(_measure_small, num_rows, dtype)
    for num_rows in (1, 40, 700) if IS_GPU else (3,):
        found[f"block_linear {num_rows}"] = partial(_measure_blocks, num_rows, dtype)
    if can_describe(find_traits(DEVICE), 3 * _HIDDEN, _OUTPUTS, dtype.itemsize):
        for num_rows in (1, 700) if IS_GPU else (3,):
            found[f"descriptor_linear {num_rows}"] = partial(_measure_described, num_rows, dtype)
    return found


def _measure_small(num_rows: int, dtype: torch.dtype) -> float:
    """Few rows."""
    x, weight = _draw_product(num_rows, dtype)
    return compare(
        small_linear_triton(x, weight, None),
        small_linear_reference(x.float(), weight.float(), None),
    )


def _measure_described(num_rows: int, dtype: torch.dtype) -> float:
    """Tiles that descriptors bring."""
    x, weight = _draw_product(num_rows, dtype)
    return compare(
        descriptor_linear_triton(x, weight),
        descriptor_linear_reference(x.float(), weight.float(), None),
    )


def _measure_blocks(num_rows: int, dtype: torch.dtype) -> float:
    """Weights in fp8 with a scale for each block."""
    x = _draw(num_rows, 3 * _HIDDEN, dtype=dtype)
    scales = _draw(2, -(-3 * _HIDDEN // 128), dtype=torch.float32).abs() / 32
    weight = BlockScaledWeight(_draw(200, 3 * _HIDDEN, dtype=dtype).to(FP8), scales)
    return compare(
        block_linear_triton(x, weight, None), block_linear_reference(x.float(), weight, None)
    )


def _draw_product(num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows and a weight whose product is near 1."""
    x = _draw(num_rows, 3 * _HIDDEN, dtype=dtype)
    return x, _draw(_OUTPUTS, 3 * _HIDDEN, dtype=dtype) / 64


def _measure_gathered(num_tokens: int, dtype: torch.dtype) -> float:
    """Tokens in their experts' order, multiplied and gated; the order, too, is the reference's."""
    draft = _draw_experts(num_tokens, dtype)
    counted = order_by_expert_triton(draft.chosen_TC, _HELD, draft.block_rows)
    for name in ("rows_N", "experts_B", "firsts_B", "ends_B"):
        same = torch.equal(getattr(draft.order, name), getattr(counted, name))
        assert same, f"{name} differ"
    found = gather_gated_triton(draft.x_TD, draft.gate_up, draft.order, None, _NUM_CHOSEN)
    return compare(found, draft.compute_inner())


def _measure_scattered(num_tokens: int, dtype: torch.dtype) -> float:
    """The second product, given what the first should have made."""
    draft = _draw_experts(num_tokens, dtype)
    inner = draft.compute_inner().to(dtype)
    expected = scatter_product_reference(inner.float(), _widen(draft.down), draft.order)
    return compare(scatter_product_triton(inner, draft.down, draft.order), expected)


def _measure_summed(num_tokens: int, dtype: torch.dtype) -> float:
    """What experts say of a token, weighed."""
    draft = _draw_experts(num_tokens, dtype)
    each_TCD = _draw(num_tokens, _NUM_CHOSEN, _HIDDEN, dtype=dtype)
    weights = (draft.chosen_TC, draft.weights_TC, _HELD)
    return compare(
        expert_sum_triton(each_TCD, *weights), expert_sum_reference(each_TCD.float(), *weights)
    )


_EXPERT_ERRORS: Final = {
    "gather_gated": _measure_gathered,
    "scatter_product": _measure_scattered,
    "expert_sum": _measure_summed,
}


@dataclass(frozen=True, slots=True)
class _Draft:
    """Tokens, who is asked for them and by which weights."""

    x_TD: Tensor
    chosen_TC: Tensor
    weights_TC: Tensor
    block_rows: int
    order: ExpertOrder
    gate_up: ExpertProduct
    down: ExpertProduct

    def compute_inner(self) -> Tensor:
        """What the first product and the gate should make, in fp32."""
        x_TD, gate_up = self.x_TD.float(), _widen(self.gate_up)
        return gather_gated_reference(x_TD, gate_up, self.order, None, _NUM_CHOSEN)


def _draw_experts(num_tokens: int, dtype: torch.dtype) -> _Draft:
    """A layer's worth."""
    scores = torch.rand(num_tokens, _HELD.total, device=DEVICE)
    weights_TC, chosen_TC = scores.topk(_NUM_CHOSEN)
    block_rows = choose_block_rows(chosen_TC.numel(), _HELD)
    return _Draft(
        x_TD=_draw(num_tokens, _HIDDEN, dtype=dtype),
        chosen_TC=chosen_TC,
        weights_TC=weights_TC,
        block_rows=block_rows,
        order=order_by_expert_reference(chosen_TC, _HELD, block_rows),
        gate_up=ExpertProduct(_draw(16, 2 * _INNER, _HIDDEN, dtype=dtype) / 32, None),
        down=ExpertProduct(_draw(16, _HIDDEN, _INNER, dtype=dtype) / 32, None),
    )


def _widen(product: ExpertProduct) -> ExpertProduct:
    """The same in fp32."""
    assert isinstance(product.weights_EMK, Tensor)
    return ExpertProduct(product.weights_EMK.float(), None)


def _draw(*shape: int, dtype: torch.dtype) -> Tensor:
    """Random numbers on the device."""
    return torch.randn(*shape, device=DEVICE).to(dtype)


def compare(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return ((actual.float() - expected).norm() / expected.norm()).item()
