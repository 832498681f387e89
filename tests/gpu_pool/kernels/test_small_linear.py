"""Products of few rows: every form and split against the reference, and who serves which shape."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.gpu_traits import get_traits
from gpu_pool.kernels.small_linear import (
    MAX_ROWS,
    SmallLaunch,
    choose_small_launch,
    small_linear_reference,
    small_linear_triton,
)
from gpu_pool.kernels.small_linear_table import SMALL_LINEAR, SmallLinearTable
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton

VECTOR, TILE = 4, 32
"""Outputs of a program."""


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers, the same at every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def create_launch(num_rows: int, num_splits: int) -> SmallLaunch:
    """Small pieces, so that small matrices have several."""
    if num_rows <= 2:
        return SmallLaunch(num_rows, VECTOR, 64, num_splits, 4, 1)
    return SmallLaunch(16 if num_rows <= 16 else 64, TILE, 32, num_splits, 4, 3)


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 16, 17, 64])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(64, 512), (37, 300), (5, 70)])
def test_the_kernel_agrees_with_the_reference(
    num_outputs: int, num_inputs: int, num_rows: int, num_splits: int, dtype: torch.dtype
) -> None:
    x = draw(num_rows, num_inputs, dtype=dtype)
    weight = (draw(num_outputs, num_inputs) / num_inputs**0.5).to(dtype)
    bias = draw(num_outputs, dtype=dtype) if num_rows % 2 else None
    launch = create_launch(num_rows, num_splits)
    actual = small_linear_triton(x, weight, bias, launch)
    expected = small_linear_reference(x, weight, bias)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@needs_triton
def test_a_row_depends_on_no_other_row_of_its_tile() -> None:
    x, weight = draw(9, 96).round(), draw(40, 96).round()
    launch = create_launch(9, 2)
    whole = small_linear_triton(x, weight, None, launch)
    assert torch.equal(small_linear_triton(x[3:8], weight, None, launch), whole[3:8])
    x[4] = float("nan")
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(small_linear_triton(x, weight, None, launch)[others], whole[others])


@pytest.mark.parametrize("shape", [(6144, 4096), (1024, 3072), (151_936, 1024), (16, 64)])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 33, MAX_ROWS])
def test_launches_fill_a_gpu_where_the_shape_lets_them(
    num_rows: int, shape: tuple[int, int]
) -> None:
    num_outputs, num_inputs = shape
    launch = choose_small_launch(get_traits(90, 132), num_rows, num_outputs, num_inputs, 2)
    num_programs = -(-num_outputs // launch.outputs) * launch.num_splits
    steps = num_inputs // (launch.inputs * launch.num_splits)
    assert launch.rows >= num_rows
    assert num_programs >= 132 or steps < 8
    assert launch.num_splits == 1 or steps >= 2


def test_a_shape_is_ours_only_where_a_gpu_has_confirmed_it() -> None:
    traits = get_traits(90, 132)
    table = SmallLinearTable({(90, 6144, 4096): (1, 16)})
    served = [n for n in range(1, 65) if table.prefers_ours(traits, n, 6144, 4096)]
    assert served == [1, *range(9, 17)]
    assert not table.prefers_ours(traits, 1, 4096, 6144)
    assert not table.prefers_ours(get_traits(89, 128), 1, 6144, 4096)
    assert SMALL_LINEAR.prefers_ours(traits, 1, 6144, 4096)
    assert not SMALL_LINEAR.prefers_ours(traits, 2, 6144, 4096)
    assert not SMALL_LINEAR.prefers_ours(get_traits(80, 108), 1, 6144, 4096)
