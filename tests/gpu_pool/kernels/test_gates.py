"""Gates other than SwiGLU against their formulas."""

import pytest
import torch

from gpu_pool.kernels.clamped_swiglu import clamped_swiglu
from gpu_pool.kernels.gelu_mul import gelu_mul
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (7, 258)])
def test_gelu_scales_what_is_beside_the_gate(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    both = torch.randn(shape).mul_(2).to(dtype)
    gate, up = both.double().chunk(2, -1)
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    assert_close(gelu_mul(both), 0.5 * gate * (1 + torch.tanh(inner)) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (7, 258)])
def test_clamped_swiglu_clamps_gate_and_up(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    both = torch.randn(shape).mul_(4).to(dtype)
    gate, up = both.double().chunk(2, -1)
    gate, up = gate.clamp(max=3.0), up.clamp(-3.0, 3.0)
    assert_close(clamped_swiglu(both, 1.5, 3.0), gate * torch.sigmoid(1.5 * gate) * (up + 1))


@pytest.mark.parametrize("gate", [gelu_mul, lambda x: clamped_swiglu(x, 1.0, 7.0)])
def test_an_odd_width_is_refused(gate: object) -> None:
    assert callable(gate)
    with pytest.raises(AssertionError, match="halves"):
        gate(torch.zeros(2, 7))
