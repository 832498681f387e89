"""How far products on the device are from their references: experts, few rows, fp8.

Error is ‖out − ref‖ / ‖ref‖ with the reference in fp32. Read next: `kernels`, which reports it.
"""

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


def list_product_errors(dtype: torch.dtype) -> dict[str, float]:
    """The relative error of every product. Raises: `AssertionError` where rows are misplaced."""
    found: dict[str, float] = {}
    for num_tokens in (1, 37, 700) if IS_GPU else (1, 5):
        for name, error in _list_expert_errors(num_tokens, dtype).items():
            found[f"{name} {num_tokens}"] = error
    for num_rows in (1, 2, 5, 64) if IS_GPU else (2,):
        x = _draw(num_rows, 3 * _HIDDEN, dtype=dtype)
        weight = _draw(1000, 3 * _HIDDEN, dtype=dtype) / 64
        expected = small_linear_reference(x.float(), weight.float(), None)
        found[f"small_linear {num_rows}"] = compare(small_linear_triton(x, weight, None), expected)
    for num_rows in (1, 40, 700) if IS_GPU else (3,):
        x = _draw(num_rows, 3 * _HIDDEN, dtype=dtype)
        scales = _draw(2, -(-3 * _HIDDEN // 128), dtype=torch.float32).abs() / 32
        blocks = BlockScaledWeight(_draw(200, 3 * _HIDDEN, dtype=dtype).to(FP8), scales)
        expected = block_linear_reference(x.float(), blocks, None)
        found[f"block_linear {num_rows}"] = compare(block_linear_triton(x, blocks, None), expected)
    if can_describe(find_traits(DEVICE), 3 * _HIDDEN, 1000, dtype.itemsize):
        for num_rows in (1, 700) if IS_GPU else (3,):
            x = _draw(num_rows, 3 * _HIDDEN, dtype=dtype)
            weight = _draw(1000, 3 * _HIDDEN, dtype=dtype) / 64
            expected = descriptor_linear_reference(x.float(), weight.float(), None)
            error = compare(descriptor_linear_triton(x, weight), expected)
            found[f"descriptor_linear {num_rows}"] = error
    return found


def _list_expert_errors(num_tokens: int, dtype: torch.dtype) -> dict[str, float]:
    """Gated and plain products and sums; the second are given what the first should have made."""
    scores = torch.rand(num_tokens, _HELD.total, device=DEVICE)
    weights_TC, chosen_TC = scores.topk(_NUM_CHOSEN)
    block_rows = choose_block_rows(chosen_TC.numel(), _HELD)
    order = order_by_expert_reference(chosen_TC, _HELD, block_rows)
    counted = order_by_expert_triton(chosen_TC, _HELD, block_rows)
    for name in ("rows_N", "experts_B", "firsts_B", "ends_B"):
        assert torch.equal(getattr(order, name), getattr(counted, name)), f"{name} differ"
    x_TD = _draw(num_tokens, _HIDDEN, dtype=dtype)
    gate_up = ExpertProduct(_draw(16, 2 * _INNER, _HIDDEN, dtype=dtype) / 32, None)
    down = ExpertProduct(_draw(16, _HIDDEN, _INNER, dtype=dtype) / 32, None)
    inner = gather_gated_reference(x_TD.float(), _widen(gate_up), order, None, _NUM_CHOSEN)
    each = scatter_product_reference(inner.to(dtype).float(), _widen(down), order)
    each_TCD = each.to(dtype).view(num_tokens, _NUM_CHOSEN, -1)
    return {
        "gather_gated": compare(
            gather_gated_triton(x_TD, gate_up, order, None, _NUM_CHOSEN), inner
        ),
        "scatter_product": compare(scatter_product_triton(inner.to(dtype), down, order), each),
        "expert_sum": compare(
            expert_sum_triton(each_TCD, chosen_TC, weights_TC, _HELD),
            expert_sum_reference(each_TCD.float(), chosen_TC, weights_TC, _HELD),
        ),
    }


def _widen(product: ExpertProduct) -> ExpertProduct:
    """The same in fp32."""
    return ExpertProduct(product.weights_EMK.float(), None)


def _draw(*shape: int, dtype: torch.dtype) -> Tensor:
    """Random numbers on the device."""
    return torch.randn(*shape, device=DEVICE).to(dtype)


def compare(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return ((actual.float() - expected).norm() / expected.norm()).item()
