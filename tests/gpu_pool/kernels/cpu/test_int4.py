"""Native products with weights of four bits against float64; rows do not depend on one another."""

import dataclasses

import pytest
import torch

from gpu_pool.kernels.int4_groups import Int4Weight, widen_int4
from gpu_pool.kernels.linear import NativeWeight, linear, pack_weight, packing_with
from tests.gpu_pool.kernels.cpu.native_levels import at_every_level, load_level, one_thread
from tests.gpu_pool.kernels.tolerances import assert_close

__all__ = ["one_thread"]  # applies to every test here
SHAPES = [
    (1, 32, 8, 32),
    (3, 64, 33, 32),
    (5, 128, 1, 128),
    (33, 192, 95, 64),
    (9, 1024, 160, 1024),
    (70, 384, 70, 384),
    (250, 768, 130, 96),
]
ROW_COUNTS = [1, 2, 3, 16, 17, 32, 33, 70, 250, 257]


def create_weight(outputs: int, inputs: int, group_size: int) -> Int4Weight:
    """Random numbers, factors and zeros, of which some are beyond all numbers."""
    num_groups = inputs // group_size
    return Int4Weight(
        torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8),
        torch.rand(outputs, num_groups) - 0.5,
        torch.randint(0, 17, (outputs, num_groups), dtype=torch.uint8),
    )


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


@at_every_level
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs", "group_size"), SHAPES)
def test_a_product_is_that_of_the_widened_weight(
    level: str, rows: int, inputs: int, outputs: int, group_size: int, has_bias: bool
) -> None:
    x = torch.randn(rows, inputs).bfloat16()
    weight = create_weight(outputs, inputs, group_size)
    bias = torch.randn(outputs).bfloat16() if has_bias else None
    wide = widen_int4(weight).double()
    expected = x.double() @ wide.T + (0 if bias is None else bias.double())
    with packing_with(load_level(level)):
        packed = pack_weight(weight)
    assert isinstance(packed, NativeWeight)
    assert_close(linear(x, packed, bias), expected)


@at_every_level
def test_every_number_less_every_zero_is_exact(level: str) -> None:
    """A one among zeros picks an input; 16 numbers and 17 zeros are all there are."""
    for zero in range(17):
        numbers = torch.arange(16).repeat(2, 2)  # two rows of 32 inputs
        weight = Int4Weight(
            (numbers[:, ::2] | numbers[:, 1::2] << 4).to(torch.uint8),
            torch.tensor([[1.0], [0.25]]),
            torch.full((2, 1), zero, dtype=torch.uint8),
        )
        kernels = load_level(level)
        product = kernels.multiply(
            torch.eye(32).bfloat16(), kernels.pack(weight), None, 2, weight.group_size
        )
        expected = (numbers - zero) * weight.scales
        assert torch.equal(product.float(), expected.T)
        assert torch.equal(widen_int4(weight), expected)


@at_every_level
def test_what_all_inputs_have_in_common_costs_no_accuracy(level: str) -> None:
    """Numbers are multiplied less a base and put right by the sum of inputs, here a large one."""
    kernels, weight = load_level(level), create_weight(64, 512, 128)
    x = (torch.randn(7, 512) + 300).bfloat16()
    wide = widen_int4(weight).double()
    product = kernels.multiply(x, kernels.pack(weight), None, 64, 128)
    size = x.double().abs() @ wide.abs().T
    rounding = 2**-8 * (x.double() @ wide.T).abs()  # of the answer, once
    error = (product.double() - x.double() @ wide.T).abs()
    assert bool((error <= rounding + 1e-5 * size).all())


@at_every_level
def test_a_row_does_not_depend_on_how_many_rows_there_are(level: str) -> None:
    kernels, weight = load_level(level), create_weight(96, 256, 64)
    x, packed = torch.randn(64, 256).bfloat16(), kernels.pack(weight)
    whole = kernels.multiply(x, packed, None, 96, 64)
    for count in range(1, 64):
        assert torch.equal(kernels.multiply(x[:count], packed, None, 96, 64), whole[:count])
        assert torch.equal(kernels.multiply(x[count:], packed, None, 96, 64), whole[count:])


@at_every_level
@pytest.mark.parametrize("group_size", [32, 96, 128, 384, 2304])
def test_a_row_among_many_is_what_it_is_alone(level: str, group_size: int) -> None:
    """Blocks and parts end elsewhere with each count; panels share 2,304 inputs of 250 rows,
    and groups of 384 and more are cut."""
    kernels, weight = load_level(level), create_weight(160, 2304, group_size)
    x, packed = torch.randn(257, 2304).bfloat16(), kernels.pack(weight)
    alone = torch.cat([kernels.multiply(row, packed, None, 160, group_size) for row in x.split(1)])
    for count in ROW_COUNTS:
        assert torch.equal(
            kernels.multiply(x[:count], packed, None, 160, group_size), alone[:count]
        )


@at_every_level
def test_rows_of_tiny_inputs_are_those_alone(level: str) -> None:
    """What is no normal number counts as zero for some instructions, whose sums take turns."""
    kernels, weight = load_level(level), create_weight(64, 256, 64)
    x = (torch.randn(40, 256) * 2.0**-126).bfloat16()
    assert bool(((x != 0) & (x.abs() < 2.0**-126)).any())
    large = dataclasses.replace(weight, scales=weight.scales * 2.0**60)
    packed = kernels.pack(large)
    whole = kernels.multiply(x, packed, None, 64, 64)
    alone = torch.cat([kernels.multiply(row, packed, None, 64, 64) for row in x.split(1)])
    assert bool(whole.any())
    assert torch.equal(alone, whole)


@at_every_level
@pytest.mark.parametrize("num_rows", [1, 7, 33, 600])
def test_threads_share_a_product(level: str, num_rows: int) -> None:
    kernels, weight = load_level(level), create_weight(360, 96, 32)
    x = torch.randn(num_rows, 96).bfloat16()
    alone_packed = kernels.pack(weight)
    alone = kernels.multiply(x, alone_packed, None, 360, 32)
    for num_threads in (2, 5):  # five are more than some machines have cores: some come late
        torch.set_num_threads(num_threads)
        packed = kernels.pack(weight)
        assert torch.equal(packed, alone_packed)
        for _ in range(20):
            assert torch.equal(kernels.multiply(x, packed, None, 360, 32), alone)


@at_every_level
def test_garbage_stays_in_its_row(level: str) -> None:
    kernels, weight = load_level(level), create_weight(32, 64, 32)
    x, packed = torch.randn(20, 64).bfloat16(), kernels.pack(weight)
    clean = kernels.multiply(x, packed, None, 32, 32)
    x[7] = float("nan")
    dirty = kernels.multiply(x, packed, None, 32, 32)
    assert dirty[7].isnan().all()
    kept = [row for row in range(20) if row != 7]
    assert torch.equal(dirty[kept], clean[kept])


@at_every_level
def test_groups_that_are_cut_otherwise_are_not_read(level: str) -> None:
    kernels = load_level(level)
    assert kernels.measure_int4(64, 256, 32) > 0
    assert kernels.measure_int4(64, 256, 16) == kernels.measure_int4(64, 100, 32) == 0
