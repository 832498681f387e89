"""Native norms, gates and rotations against torch, and what goes to torch all the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.add_rms_norm import add_rms_norm
from gpu_pool.kernels.cpu.current import computing_with, find_current
from gpu_pool.kernels.head_norm import HeadNorm
from gpu_pool.kernels.norm_rotate_write import norm_rotate_write, norm_rotate_write_reference
from gpu_pool.kernels.rms_norm import rms_norm
from gpu_pool.kernels.silu_mul import silu_mul
from tests.gpu_pool.kernels.cpu.native_levels import at_every_level, load_level, one_thread
from tests.gpu_pool.kernels.tolerances import assert_close

__all__ = ["one_thread"]  # applies to every test here
EPS = 1e-6
SIZES = [1, 7, 16, 100, 1024]


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype)


def norm_in_float64(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


@at_every_level
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", SIZES)
def test_norms_with_and_without_a_sum(level: str, size: int, weight_dtype: torch.dtype) -> None:
    x, residual = draw(5, size + 3)[:, :size], draw(5, 2 * size)[:, size:]
    weight = draw(size, dtype=weight_dtype)
    with computing_with(load_level(level)):
        assert find_current(x, residual, weight=weight)
        normed, total = add_rms_norm(x, residual, weight, EPS)
        assert_close(rms_norm(x, weight, EPS), norm_in_float64(x, weight))
    assert torch.equal(total, residual + x)
    assert_close(normed, norm_in_float64(total, weight))


@at_every_level
@pytest.mark.parametrize("size", SIZES)
def test_gates_are_rounded_before_the_product(level: str, size: int) -> None:
    gate_up = draw(6, 2 * size + 5)[:, : 2 * size] * 4
    gate, up = gate_up.double().chunk(2, dim=-1)
    with computing_with(load_level(level)):
        gated = silu_mul(gate_up)
    assert_close(gated, torch.nn.functional.silu(gate) * up)
    ones = torch.cat((gate_up[:, :size], torch.ones(6, size).bfloat16()), -1)
    with computing_with(load_level(level)):
        rounded = silu_mul(ones)
        assert torch.equal(silu_mul(torch.cat((ones[:, :size], rounded), -1)), rounded * rounded)


@at_every_level
def test_a_gate_closes_and_opens_wholly_at_its_ends(level: str) -> None:
    gates = torch.tensor([[-3e38, -200.0, -0.0, 0.0, 200.0, 3e38]]).bfloat16()
    with computing_with(load_level(level)):
        gated = silu_mul(torch.cat((gates, torch.ones_like(gates)), -1))
    expected = torch.where(gates > 0, gates, 0)
    torch.testing.assert_close(gated, expected, rtol=0, atol=1e-2)


@at_every_level
@pytest.mark.parametrize("head_dim", [32, 64, 128, 160])
@pytest.mark.parametrize("has_rotation", [False, True])
@pytest.mark.parametrize("weight_dtype", [None, torch.bfloat16, torch.float32])
def test_queries_and_keys_are_normed_and_turned_and_values_left(
    level: str, head_dim: int, weight_dtype: torch.dtype | None, *, has_rotation: bool
) -> None:
    num_tokens, num_heads, num_kv_heads = 3, 5, 2
    num_all = num_heads + 2 * num_kv_heads
    whole = draw(num_tokens, num_all * head_dim + 7)
    heads = whole[:, : num_all * head_dim].view(num_tokens, num_all, head_dim)
    norm = None
    if weight_dtype is not None:
        norm = HeadNorm(draw(num_heads + num_kv_heads, head_dim, dtype=weight_dtype), EPS)
    tables = draw(num_tokens, 2, head_dim)
    rotation = (tables[:, 0], tables[:, 1]) if has_rotation else None
    before, expected = whole.clone(), heads.clone()
    norm_rotate_write_reference(expected, num_heads, norm, rotation, None)
    with computing_with(load_level(level)):
        norm_rotate_write(heads, num_heads, norm, rotation, None)
    torch.testing.assert_close(heads, expected, rtol=2e-2, atol=4e-2)
    untouched = (num_heads + num_kv_heads) * head_dim
    assert torch.equal(whole[:, untouched:], before[:, untouched:])


def list_operations(size: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """What is done to rows of `2 · size` elements, each row by itself."""
    weight, head_weight = draw(2 * size), draw(2, size)
    tables = draw(1, 2, size).expand(4096, 2, size)

    def turn(x: Tensor) -> Tensor:
        heads = x.clone().view(x.shape[0], 2, size)
        rotation = (tables[: x.shape[0], 0], tables[: x.shape[0], 1])
        norm_rotate_write(heads, 2, HeadNorm(head_weight, EPS), rotation, None)
        return heads.flatten(1)

    return {
        "norm": lambda x: rms_norm(x, weight, EPS),
        "sum and norm": lambda x: torch.cat(add_rms_norm(x, x, weight, EPS), -1),
        "gate": silu_mul,
        "turn": turn,
    }


@at_every_level
@pytest.mark.parametrize("name", list_operations(32))
def test_a_row_does_not_depend_on_others_or_on_threads(level: str, name: str) -> None:
    operation = list_operations(64)[name]
    x, before = draw(2000, 128), torch.get_num_threads()
    try:
        with computing_with(load_level(level)):
            whole = operation(x)
            torch.set_num_threads(3)  # by now there are enough rows to share
            assert torch.equal(operation(x), whole)
            x[7] = float("nan")
            dirty = operation(x)
            alone = operation(x[1234:1235])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, whole[1234:1235])
    assert dirty[7].isnan().all()
    kept = [row for row in range(2000) if row != 7]
    assert torch.equal(dirty[kept], whole[kept])


@at_every_level
def test_what_the_kernels_cannot_read_goes_to_torch(level: str) -> None:
    x, weight = draw(4, 8), draw(8)
    assert find_current(x, weight=weight) is None  # nobody computes with them
    with computing_with(load_level(level)):
        assert find_current(x, weight=weight)
        with computing_with(None):
            assert find_current(x, weight=weight) is None
        assert find_current(x.float()) is None
        assert find_current(x, x.half()) is None
        assert find_current(x.T) is None
        assert find_current(x, weight=weight.half()) is None
        assert find_current(x, weight=draw(16)[::2]) is None
    assert find_current(x) is None


@at_every_level
def test_odd_heads_and_tables_that_lie_differently_are_turned_by_torch(level: str) -> None:
    heads, tables = draw(3, 4, 24), (draw(3, 24), draw(3, 48)[:, :24])
    expected = heads.clone()
    norm_rotate_write_reference(expected, 2, None, tables, None)
    with computing_with(load_level(level)):
        norm_rotate_write(heads, 2, None, tables, None)
    assert torch.equal(heads, expected)
    heads, tables = draw(3, 4, 64), (draw(3, 64), draw(3, 128)[:, :64])
    expected = heads.clone()
    norm_rotate_write_reference(expected, 2, None, tables, None)
    with computing_with(load_level(level)):
        norm_rotate_write(heads, 2, None, tables, None)
    assert torch.equal(heads, expected)
