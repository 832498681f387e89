"""Norms, gate, rotation and KV write: each kernel against its reference."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.add_rms_norm import add_rms_norm_reference, add_rms_norm_triton
from gpu_pool.kernels.kv_write import kv_write_reference, kv_write_triton
from gpu_pool.kernels.rms_norm import rms_norm_reference, rms_norm_triton
from gpu_pool.kernels.rotary import rotary_reference, rotary_triton
from gpu_pool.kernels.silu_mul import silu_mul_reference, silu_mul_triton
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

pytestmark = needs_triton
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((1, 64), (7, 100), (3, 4096))


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    """Numbers, the same at every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def assert_like(actual: Tensor, expected: Tensor) -> None:
    """Equal but for the last bit or two of the dtype."""
    tolerance = 1e-5 if actual.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = draw(*shape, dtype=dtype), draw(shape[1], dtype=dtype)
    assert_like(rms_norm_triton(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6))


def test_rms_norm_of_rows_that_lie_apart() -> None:
    x, weight = draw(6, 80, dtype=torch.float32)[:, 16:], draw(64, dtype=torch.float32)
    assert_like(rms_norm_triton(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype).flip(0).neg()
    weight = draw(shape[1], dtype=dtype)
    actual = add_rms_norm_triton(x, residual, weight, 1e-6)
    expected = add_rms_norm_reference(x, residual, weight, 1e-6)
    # The interpreter cuts bf16 off where hardware rounds, so even the sum is equal only nearly.
    assert_like(actual[1], expected[1])
    assert_like(actual[0], expected[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (5, 2 * 1030), (2, 4096)])
def test_silu_mul(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = draw(*shape, dtype=dtype).mul_(4)
    assert_like(silu_mul_triton(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(3, 64), (1, 6), (8, 128)])
def test_rotary_of_a_part_of_a_tensor(num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    whole = draw(5, num_heads + 2, head_dim, dtype=dtype)
    angles = draw(5, head_dim, dtype=torch.float32)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    turned = whole.clone()
    rotary_triton(turned[:, :num_heads], cos, sin)
    rotary_reference(whole[:, :num_heads], cos, sin)
    assert_like(turned, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 1030])
def test_kv_write_puts_each_row_into_its_slot_and_no_other(size: int, dtype: torch.dtype) -> None:
    slots = draw(20, size, dtype=dtype)
    kv = draw(4, size + 3, dtype=dtype)[:, 3:]
    slot_ids = torch.tensor([7, 0, 19, 3], device=DEVICE)
    expected = slots.clone()
    kv_write_reference(expected, slot_ids, kv)
    kv_write_triton(slots, slot_ids, kv)
    assert torch.equal(slots, expected)
