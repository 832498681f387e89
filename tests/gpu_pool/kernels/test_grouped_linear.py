"""Products with the weights of rows' experts: the kernels against the references."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.expert_order import HeldExperts, order_by_expert_reference
from gpu_pool.kernels.expert_sum import expert_sum_reference, expert_sum_triton
from gpu_pool.kernels.fp8_blocks import FP8, BlockScaledWeight
from gpu_pool.kernels.grouped_linear import (
    ClampedGate,
    ExpertProduct,
    gather_gated_reference,
    gather_gated_triton,
    scatter_product_reference,
    scatter_product_triton,
)
from tests.gpu_pool.kernels.test_expert_order import draw_choices
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton

pytestmark = needs_triton
HELD = HeldExperts(1, 3, 5)
GATE = ClampedGate(1.702, 2.0)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers, the same at every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal but for rounding."""
    tolerance = 1e-5 if actual.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("block_rows", [16, 64])
@pytest.mark.parametrize(
    ("gate", "has_bias", "is_weighed"), [(None, False, True), (GATE, True, False)]
)
def test_gated_products_agree_with_the_reference(
    gate: ClampedGate | None,
    has_bias: bool,
    is_weighed: bool,
    block_rows: int,
    dtype: torch.dtype,
) -> None:
    chosen, num_inputs, num_outputs = draw_choices(21, 2, 5), 140, 37
    x = draw(21, num_inputs, dtype=dtype)
    weights = (draw(3, 2 * num_outputs, num_inputs) / num_inputs**0.5).to(dtype)
    bias = draw(3, 2 * num_outputs, dtype=dtype) if has_bias else None
    row_weights = draw(21, 2).sigmoid() if is_weighed else None
    order = order_by_expert_reference(chosen, HELD, block_rows)
    product = ExpertProduct(weights, bias, gate)
    expected = gather_gated_reference(x, product, order, row_weights, 2)
    actual = gather_gated_triton(x, product, order, row_weights, 2)
    num_held = int(order.ends_B.max())
    assert 0 < num_held < len(expected)
    assert_close(actual[:num_held], expected[:num_held])


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_scattered_products_agree_with_the_reference(has_bias: bool, dtype: torch.dtype) -> None:
    chosen, num_inputs, num_outputs = draw_choices(21, 2, 5), 70, 130
    weights = (draw(3, num_outputs, num_inputs) / num_inputs**0.5).to(dtype)
    bias = draw(3, num_outputs, dtype=dtype) if has_bias else None
    order = order_by_expert_reference(chosen, HELD, 16)
    x = draw(42, num_inputs, dtype=dtype)
    x[int(order.ends_B.max()) :] = float("nan")  # what other ranks' rows hold is not read
    product = ExpertProduct(weights, bias)
    expected = scatter_product_reference(x, product, order)
    actual = scatter_product_triton(x, product, order)
    is_held = ((chosen >= 1) & (chosen < 4)).flatten()
    assert not expected.isnan().any()
    assert_close(actual[is_held], expected[is_held])


@pytest.mark.parametrize("has_weights", [False, True])
def test_sums_leave_out_what_other_ranks_hold(has_weights: bool) -> None:
    chosen, each = draw_choices(9, 3, 5), draw(9, 3, 1030)
    is_held = (chosen >= 1) & (chosen < 4)
    each[~is_held] = float("nan")
    weights = draw(9, 3).sigmoid() if has_weights else None
    factors = torch.ones_like(chosen) if weights is None else weights
    expected = (each.nan_to_num() * (factors * is_held)[..., None]).sum(1)
    assert_close(expert_sum_reference(each, chosen, weights, HELD), expected)
    assert_close(expert_sum_triton(each, chosen, weights, HELD), expected)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    # Whole numbers: their sums are exact in any order, and the interpreter's order varies.
    chosen, x = draw_choices(40, 2, 5), draw(40, 48).round()
    product = ExpertProduct(draw(3, 2 * 24, 48).round(), None)
    whole = order_by_expert_reference(chosen, HELD, 16)
    found = gather_gated_triton(x, product, whole, None, 2)
    for token in (0, 17, 39):
        alone = order_by_expert_reference(chosen[token : token + 1], HELD, 16)
        part = gather_gated_triton(x[token : token + 1], product, alone, None, 2)
        for place in range(int(alone.ends_B.max())):
            row = 2 * token + int(alone.rows_N[place])
            (other,) = (whole.rows_N == row).nonzero()
            assert torch.equal(part[place], found[int(other)])


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("block_rows", [16, 64])
def test_weights_in_fp8_blocks_are_widened_with_their_factors(
    block_rows: int, dtype: torch.dtype
) -> None:
    def draw_blocks(num_outputs: int, num_inputs: int) -> BlockScaledWeight:
        scales = draw(3, -(-num_outputs // 128), -(-num_inputs // 128)).exp() / num_inputs**0.5
        return BlockScaledWeight(draw(3, num_outputs, num_inputs).to(FP8), scales)

    chosen, x = draw_choices(21, 2, 5), draw(21, 300, dtype=dtype)
    order = order_by_expert_reference(chosen, HELD, block_rows)
    num_held = int(order.ends_B.max())
    gate_up, down = (
        ExpertProduct(draw_blocks(256, 300), None),
        ExpertProduct(draw_blocks(200, 128), None),
    )
    inner = gather_gated_reference(x, gate_up, order, None, 2)
    assert_close(gather_gated_triton(x, gate_up, order, None, 2)[:num_held], inner[:num_held])
    is_held = ((chosen >= 1) & (chosen < 4)).flatten()
    expected = scatter_product_reference(inner, down, order)
    assert expected.abs().max() > 0.5
    assert_close(scatter_product_triton(inner, down, order)[is_held], expected[is_held])
