"""Products by tiles that hardware brings: kernel against reference, and where it may run."""

import pytest
import torch

from gpu_pool.kernels.descriptor_linear import (
    can_describe,
    descriptor_linear_reference,
    descriptor_linear_triton,
)
from gpu_pool.kernels.gpu_traits import get_traits
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "num_inputs"),
    [
        (1, 8, 8),
        (129, 136, 72),
        (300, 256, 128),
        (127, 264, 200),
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_kernel_agrees_with_the_reference(
    dtype: torch.dtype, num_rows: int, num_outputs: int, num_inputs: int, has_bias: bool
) -> None:
    torch.manual_seed(num_rows)
    x = torch.randn(num_rows, num_inputs, device=DEVICE).to(dtype)
    weight = torch.randn(num_outputs, num_inputs, device=DEVICE).to(dtype)
    bias = torch.randn(num_outputs, device=DEVICE).to(dtype) if has_bias else None
    expected = descriptor_linear_reference(x, weight, bias).float()
    actual = descriptor_linear_triton(x, weight, bias).float()
    assert (actual - expected).norm() <= 2e-3 * expected.norm()


@needs_triton
def test_what_lies_behind_a_tensor_is_never_read() -> None:
    memory = torch.full((40, 64), float("nan"), device=DEVICE)
    memory[:9] = torch.randn(9, 64, device=DEVICE)
    weight = torch.full((150, 64), float("nan"), device=DEVICE)
    weight[:12] = torch.randn(12, 64, device=DEVICE)
    actual = descriptor_linear_triton(memory[:9], weight[:12])
    assert torch.allclose(actual, memory[:9] @ weight[:12].T, atol=1e-4)


@pytest.mark.parametrize(
    ("capability", "num_inputs", "num_outputs", "may"),
    [(90, 4096, 4096, True), (89, 4096, 4096, False), (90, 4100, 4096, False), (90, 64, 12, False)],
)
def test_descriptors_are_for_hopper_and_aligned_rows(
    capability: int, num_inputs: int, num_outputs: int, may: bool
) -> None:
    assert can_describe(get_traits(capability, 100), num_inputs, num_outputs, 2) is may
