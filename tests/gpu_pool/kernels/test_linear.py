"""Plain and packed products against float64, and their independence of the number of rows."""

import pytest
import torch

from gpu_pool.kernels.linear import PackedWeight, linear, linear_reference, pack_weight
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 16, 8), (3, 100, 33), (65, 256, 96)])
def test_both_forms_multiply_with_the_transposed_weight(
    rows: int, inputs: int, outputs: int, has_bias: bool, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    bias = torch.randn(outputs).to(dtype) if has_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert_close(linear(x, weight, bias), expected)
    assert_close(linear_reference(x, weight, bias), expected)
    with torch.inference_mode():
        assert_close(linear(x, pack_weight(weight), bias), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 512), (768, 256), (1024, 64)])
def test_a_packed_row_does_not_depend_on_how_many_rows_there_are(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    x = torch.randn(300, inputs).to(dtype)
    with torch.inference_mode():
        weight = pack_weight(torch.randn(outputs, inputs).to(dtype))
        if not isinstance(weight, PackedWeight):
            return  # this machine has no oneDNN: nothing is promised
        whole = linear(x, weight)
        for count in (1, 2, 3, 5, 16, 33, 64, 255):
            assert torch.equal(linear(x[:count], weight), whole[:count]), count


def test_a_row_of_another_width_is_refused() -> None:
    weight = torch.zeros(4, 8)
    for form in (weight, pack_weight(weight)):
        with pytest.raises(AssertionError, match="disagree on K"):
            linear(torch.zeros(2, 7), form)
