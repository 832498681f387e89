"""Products with weights in fp8 blocks: widening and splits against the reference."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.block_linear import (
    BlockLaunch,
    block_linear_reference,
    block_linear_triton,
)
from gpu_pool.kernels.fp8_blocks import FP8, BlockScaledWeight, widen_blocks_reference, widen_e4m3
from gpu_pool.kernels.triton_language import jit, tl
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton

pytestmark = needs_triton


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers, the same at every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def draw_weight(num_outputs: int, num_inputs: int) -> BlockScaledWeight:
    """A weight whose blocks have very different factors."""
    scales = draw(-(-num_outputs // 128), -(-num_inputs // 128)).exp() / num_inputs**0.5
    return BlockScaledWeight(draw(num_outputs, num_inputs).to(FP8), scales)


@jit
def _widen_kernel(bits_ptr, out_ptr):
    """All patterns of a byte."""
    patterns = tl.arange(0, 256)
    tl.store(out_ptr + patterns, widen_e4m3(tl.load(bits_ptr + patterns), False, tl.float32))


def test_every_number_is_widened_exactly_without_the_instruction() -> None:
    bits = torch.arange(256, dtype=torch.int32, device=DEVICE).to(torch.uint8)
    found = torch.empty(256, device=DEVICE)
    _widen_kernel[(1,)](bits, found)
    expected = bits.view(FP8).float()
    is_number = ~expected.isnan()
    assert is_number.sum() == 254
    assert torch.equal(found[is_number], expected[is_number])


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("num_rows", [1, 5, 40])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(256, 512), (200, 300), (64, 128)])
def test_the_kernel_agrees_with_the_reference(
    num_outputs: int, num_inputs: int, num_rows: int, num_splits: int, dtype: torch.dtype
) -> None:
    x, weight = draw(num_rows, num_inputs, dtype=dtype), draw_weight(num_outputs, num_inputs)
    bias = draw(num_outputs, dtype=dtype) if num_rows > 1 else None
    launch = BlockLaunch(16 if num_rows < 16 else 32, 64, num_splits, 4, 3)
    actual = block_linear_triton(x, weight, bias, launch=launch)
    expected = block_linear_reference(x, weight, bias)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    one_factor = BlockScaledWeight(weight.weight, weight.scales.roll(1, -1) * 1.1)
    assert (block_linear_reference(x, one_factor, bias) - expected).abs().max() > 0.1


def test_widened_blocks_are_numbers_times_their_factor() -> None:
    weight = draw_weight(200, 300)
    found = widen_blocks_reference(weight)
    for row, column in ((0, 0), (127, 128), (128, 127), (199, 299)):
        number = weight.weight[row, column].float()
        assert found[row, column] == number * weight.scales[row // 128, column // 128]
