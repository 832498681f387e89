"""Activations against their formulas, and the same bits wherever an element stands."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.activations import gelu, sigmoid, silu
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close

EXTREMES = [0.0, -0.0, 1e-30, 90.0, -90.0, 1e4, -1e4, float("inf")]
FORMULAS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sigmoid": (sigmoid, torch.sigmoid),
    "silu": (silu, functional.silu),
    "gelu": (gelu, lambda x: functional.gelu(x, approximate="tanh")),
}


def is_even(activate: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """True where the first elements are the same however many follow."""
    whole = activate(x)
    return all(torch.equal(activate(x[:n].clone()), whole[:n]) for n in range(1, 100))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_they_follow_their_formulas(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, torchs = FORMULAS[name]
    x = (torch.randn(1000) * 2).to(dtype)
    assert_close(ours(x), torchs(x.double()))
    extremes = torch.tensor(EXTREMES, dtype=dtype)
    torch.testing.assert_close(ours(extremes), torchs(extremes), atol=1e-30, rtol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_an_element_has_the_same_bits_wherever_it_stands(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(4096).mul_(3).to(dtype)
    assert is_even(FORMULAS[name][0], x)


def test_some_of_torchs_own_do_not() -> None:
    """The control, where torch uses vectors at all."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("torch computes one by one here")
    torch.manual_seed(0)
    x = torch.randn(4096) * 3
    assert not all(is_even(torchs, x) for _, torchs in FORMULAS.values())
