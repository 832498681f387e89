"""Norm, turn and write in one go: what the three do one after the other, and nothing else."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.head_norm import HeadNorm, head_norm
from gpu_pool.kernels.kv_write import kv_write
from gpu_pool.kernels.norm_rotate_write import (
    KvSlots,
    norm_rotate_write,
    norm_rotate_write_reference,
    norm_rotate_write_triton,
)
from gpu_pool.kernels.rotary import rotary
from tests.gpu_pool.kernels.tolerances import DTYPES
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def create_case(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, HeadNorm, tuple[Tensor, Tensor], KvSlots]:
    """Heads whose rows lie apart, and a memory in which NaN lies."""
    generator = torch.Generator().manual_seed(head_dim + num_tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    num_all = num_heads + 2 * num_kv_heads
    whole = draw(num_tokens, num_all * head_dim + 5).to(dtype)
    heads = whole[:, : num_all * head_dim].view(num_tokens, num_all, head_dim)
    norm = HeadNorm(draw(num_heads + num_kv_heads, head_dim).to(dtype), 1e-6)
    angles = draw(num_tokens, head_dim // 2)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
    tables = torch.stack((cos, sin), 1).to(dtype)
    slots = torch.full((3 * num_tokens, 2 * num_kv_heads * head_dim), float("nan"), device=DEVICE)
    ids = torch.randperm(3 * num_tokens, generator=generator)[:num_tokens].to(DEVICE)
    return heads, norm, (tables[:, 0], tables[:, 1]), KvSlots(slots.to(dtype), ids)


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("has_rotation", [False, True])
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("sizes", [(1, 4, 2, 8), (5, 7, 1, 6), (3, 9, 3, 64)])
def test_one_kernel_does_what_the_three_do(
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    *,
    has_norm: bool,
    has_rotation: bool,
    writes: bool,
) -> None:
    heads, norm, rotation, slots = create_case(*sizes, dtype)
    asked = (norm if has_norm else None, rotation if has_rotation else None)
    expected_heads = heads.clone()
    expected_slots = KvSlots(slots.slots_XE.clone(), slots.slot_ids_T)
    num_heads = sizes[1]
    end = num_heads if writes else heads.shape[1]
    norm_rotate_write_reference(
        expected_heads, num_heads, *asked, expected_slots if writes else None
    )
    norm_rotate_write_triton(heads, num_heads, *asked, slots if writes else None)
    tolerance = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    torch.testing.assert_close(heads[:, :end], expected_heads[:, :end], **tolerance)
    torch.testing.assert_close(slots.slots_XE, expected_slots.slots_XE, equal_nan=True, **tolerance)
    assert bool(slots.slots_XE.isnan().all()) is not writes


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_the_three_operations(dtype: torch.dtype) -> None:
    heads, norm, rotation, slots = create_case(4, 6, 2, 16, dtype)
    expected, written = heads.clone(), slots.slots_XE.clone()
    head_norm(expected[:, :8], norm.weight_XH, norm.eps)
    rotary(expected[:, :8], *rotation)
    kv_write(written, slots.slot_ids_T, expected[:, 6:].flatten(1))
    norm_rotate_write(heads, 6, norm, rotation, slots)
    assert torch.equal(heads[:, :6], expected[:, :6])
    assert torch.equal(slots.slots_XE.nan_to_num(7), written.nan_to_num(7))


@needs_triton
def test_weights_in_fp32_beside_bf16_are_rounded_once() -> None:
    heads, norm, rotation, _ = create_case(2, 4, 2, 8, torch.bfloat16)
    norm = HeadNorm(norm.weight_XH.float(), norm.eps)
    expected = heads.clone()
    norm_rotate_write_reference(expected, 4, norm, rotation, None)
    norm_rotate_write_triton(heads, 4, norm, rotation, None)
    torch.testing.assert_close(heads, expected, rtol=2e-2, atol=2e-2)


def test_slots_of_another_dtype_are_refused() -> None:
    heads, norm, rotation, slots = create_case(1, 2, 1, 4, torch.float32)
    other = KvSlots(slots.slots_XE.half(), slots.slot_ids_T)
    with pytest.raises(AssertionError, match="another dtype"):
        norm_rotate_write(heads, 2, norm, rotation, other)
