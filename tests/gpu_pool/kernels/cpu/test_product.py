"""Native products against float64, and their independence of the number of rows."""

import pytest
import torch

from gpu_pool.kernels.linear import NativeWeight, linear, pack_weight, packing_with, read_rows
from tests.gpu_pool.kernels.cpu.native_levels import at_every_level, load_level, one_thread
from tests.gpu_pool.kernels.tolerances import assert_close

__all__ = ["one_thread"]  # applies to every test here
SHAPES = [
    *[(1, 16, 8), (3, 100, 33), (5, 7, 1), (13, 255, 64), (33, 257, 95), (64, 96, 160)],
    *[(70, 1100, 100), (255, 1090, 330), (300, 520, 40)],
]
"""Rows, inputs, outputs; the last go past panels in parts, and several panels at once."""


@at_every_level
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_a_product_is_that_of_the_transposed_weight(
    level: str, rows: int, inputs: int, outputs: int, has_bias: bool
) -> None:
    x = torch.randn(rows, inputs).bfloat16()
    weight = torch.randn(outputs, inputs).bfloat16()
    bias = torch.randn(outputs).bfloat16() if has_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    with packing_with(load_level(level)):
        packed = pack_weight(weight)
    assert isinstance(packed, NativeWeight)
    assert_close(linear(x, packed, bias), expected)


@at_every_level
@pytest.mark.parametrize("num_rows", [0, 1])  # the control: a row has a product
def test_no_rows_have_no_products(level: str, num_rows: int) -> None:
    kernels = load_level(level)
    packed = kernels.pack(torch.ones(40, 64).bfloat16())
    product = kernels.multiply(torch.ones(num_rows, 64).bfloat16(), packed, None, 40)
    assert product.tolist() == [[64.0] * 40] * num_rows


@at_every_level
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 5), (101, 40), (256, 96), (1100, 130)])
def test_rows_are_read_as_they_were_packed(level: str, inputs: int, outputs: int) -> None:
    weight = torch.randn(outputs, inputs).bfloat16()
    with packing_with(load_level(level)):
        packed = pack_weight(weight)
    assert isinstance(packed, NativeWeight)
    for ids in (torch.arange(outputs), torch.randint(0, outputs, (3,)), torch.tensor([]).long()):
        assert torch.equal(read_rows(packed, ids), weight[ids])


@at_every_level
@pytest.mark.parametrize("wrong", [-1, 40, 1 << 40])
def test_what_is_no_row_is_not_read(level: str, wrong: int) -> None:
    with packing_with(load_level(level)):
        packed = pack_weight(torch.ones(40, 64).bfloat16())
    assert isinstance(packed, NativeWeight)
    assert read_rows(packed, torch.tensor([0, 39])).tolist() == [[1.0] * 64] * 2
    with pytest.raises(IndexError, match="not one of 40"):
        read_rows(packed, torch.tensor([0, wrong, 39]))


@at_every_level
def test_a_sum_is_rounded_once(level: str) -> None:
    # Weights that are powers of two far apart: what is summed in bf16 loses the small ones.
    weight = torch.tensor([[256.0] + [1.0] * 63]).bfloat16()
    kernels = load_level(level)
    product = kernels.multiply(torch.ones(2, 64).bfloat16(), kernels.pack(weight), None, 1)
    assert product.tolist() == [[320.0], [320.0]]


@at_every_level
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 96), (101, 40)])
def test_a_row_does_not_depend_on_how_many_rows_there_are(
    level: str, inputs: int, outputs: int
) -> None:
    kernels = load_level(level)
    x = torch.randn(64, inputs).bfloat16()
    packed = kernels.pack(torch.randn(outputs, inputs).bfloat16())
    whole = kernels.multiply(x, packed, None, outputs)
    for count in range(1, 64):
        assert torch.equal(kernels.multiply(x[:count], packed, None, outputs), whole[:count])
        assert torch.equal(kernels.multiply(x[count:], packed, None, outputs), whole[count:])


@at_every_level
@pytest.mark.parametrize(("num_rows", "inputs"), [(49, 800), (250, 1100), (257, 600)])
def test_a_row_among_many_is_what_it_is_alone(level: str, num_rows: int, inputs: int) -> None:
    kernels = load_level(level)
    x = torch.randn(num_rows, inputs).bfloat16()
    packed = kernels.pack(torch.randn(200, inputs).bfloat16())
    whole = kernels.multiply(x, packed, None, 200)
    for row in range(num_rows):
        assert torch.equal(kernels.multiply(x[row : row + 1], packed, None, 200)[0], whole[row])


@at_every_level
@pytest.mark.parametrize("num_rows", [1, 7, 33, 600])
def test_threads_share_a_product(level: str, num_rows: int) -> None:
    kernels = load_level(level)
    x = torch.randn(num_rows, 101).bfloat16()
    packed = kernels.pack(torch.randn(360, 101).bfloat16())
    alone = kernels.multiply(x, packed, None, 360)
    for num_threads in (2, 5):  # five are more than some machines have cores: some come late
        torch.set_num_threads(num_threads)
        for _ in range(20):
            assert torch.equal(kernels.multiply(x, packed, None, 360), alone)


@at_every_level
def test_rows_and_weights_may_lie_apart(level: str) -> None:
    kernels = load_level(level)
    x, columns = torch.randn(9, 200).bfloat16(), torch.randn(64, 160).bfloat16()
    part, slices = x[:, 30:94], columns.T
    packed = kernels.pack(slices)
    expected = part.double() @ slices.double().T
    assert_close(kernels.multiply(part, packed, None, slices.shape[0]), expected)


@at_every_level
def test_rows_and_biases_of_another_dtype_are_refused(level: str) -> None:
    x, bias = torch.randn(3, 64), torch.randn(32)
    with packing_with(load_level(level)):
        packed = pack_weight(torch.randn(32, 64).bfloat16())
    assert linear(x.bfloat16(), packed, bias.bfloat16()).shape == (3, 32)
    with pytest.raises(AssertionError, match="x_TK is not bf16"):
        linear(x, packed)
    with pytest.raises(AssertionError, match="bias_M is not bf16"):
        linear(x.bfloat16(), packed, bias)


@at_every_level
def test_garbage_stays_in_its_row(level: str) -> None:
    kernels = load_level(level)
    x = torch.randn(20, 64).bfloat16()
    packed = kernels.pack(torch.randn(32, 64).bfloat16())
    clean = kernels.multiply(x, packed, None, 32)
    x[7] = float("nan")
    dirty = kernels.multiply(x, packed, None, 32)
    assert dirty[7].isnan().all()
    kept = [row for row in range(20) if row != 7]
    assert torch.equal(dirty[kept], clean[kept])


def test_other_dtypes_and_no_kernels_go_to_torch() -> None:
    weight = torch.randn(8, 8)
    assert not isinstance(pack_weight(weight.bfloat16()), NativeWeight)


@at_every_level
def test_full_precision_goes_to_torch(level: str) -> None:
    with packing_with(load_level(level)):
        assert not isinstance(pack_weight(torch.randn(8, 8)), NativeWeight)
    assert not isinstance(pack_weight(torch.randn(8, 8).bfloat16()), NativeWeight)


@at_every_level
def test_several_threads_give_the_same_bits_as_one(level: str) -> None:
    kernels, before = load_level(level), torch.get_num_threads()
    x, weight = torch.randn(17, 100).bfloat16(), torch.randn(200, 100).bfloat16()
    try:
        torch.set_num_threads(1)
        alone = kernels.multiply(x, kernels.pack(weight), None, 200)
        torch.set_num_threads(3)
        together = kernels.multiply(x, kernels.pack(weight), None, 200)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
