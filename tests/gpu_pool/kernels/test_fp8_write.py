"""Eight-bit slots: the kernel against plain torch to the bit, and how much is lost."""

import pytest
import torch

from gpu_pool.kernels.fp8_slots import Fp8Slots, narrow_slots, widen_slots
from gpu_pool.kernels.fp8_write import fp8_write, fp8_write_reference, fp8_write_triton
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

FORMS = [Fp8Slots(64, 4), Fp8Slots(72, 6), Fp8Slots(40, 1)]


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_writes_the_bits_that_torch_writes(form: Fp8Slots, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(9, 100, generator=generator).to(DEVICE, dtype)
    kv = rows[:, 3 : 3 + form.num_elements]
    kv *= torch.logspace(-6, 4, 9, device=DEVICE)[:, None]
    kv[2] = 0
    kv[3, :8] *= torch.logspace(-5, 0, 8, device=DEVICE)  # subnormals beside large ones
    ids = torch.tensor([4, 0, 17, 3, 9, 8, 1, 12, 5], device=DEVICE)
    expected = torch.full((20, form.num_bytes), 7, dtype=torch.uint8, device=DEVICE)
    actual = expected.clone()
    fp8_write_reference(expected, ids, kv, form)
    fp8_write_triton(actual, ids, kv, form)
    used = list(range(form.num_elements))
    used += range(form.scale_offset, form.scale_offset + 4 * form.num_scales)
    assert torch.equal(actual[:, used], expected[:, used])


@pytest.mark.parametrize("form", FORMS)
def test_every_head_keeps_its_own_three_bits(form: Fp8Slots) -> None:
    torch.manual_seed(0)
    kv = torch.randn(50, form.num_scales, form.head_dim)
    kv *= torch.logspace(-4, 4, form.num_scales)[:, None]
    back = widen_slots(narrow_slots(kv.flatten(1), form), form, torch.float32).view(kv.shape)
    lost = (back - kv).abs() / kv.abs().amax(-1, keepdim=True)
    assert lost.max() <= 1 / 16 / 2 * 1.25  # half of the distance at the largest number
    assert 0.01 < ((back - kv).norm() / kv.norm()).item() < 0.04


def test_zeros_stay_zeros() -> None:
    form = Fp8Slots(32, 2)
    slots = torch.ones((3, form.num_bytes), dtype=torch.uint8)
    fp8_write(slots, torch.tensor([1]), torch.zeros(1, 32), form)
    assert not widen_slots(slots[1:2], form, torch.float32).any()


def test_what_does_not_fit_is_refused() -> None:
    form = Fp8Slots(32, 2)
    slots = torch.zeros((3, form.num_bytes), dtype=torch.uint8)
    with pytest.raises(AssertionError, match="another form"):
        fp8_write(slots[:, :32], torch.tensor([1]), torch.zeros(1, 32), form)
    with pytest.raises(AssertionError, match="kv_TE"):
        fp8_write(slots, torch.tensor([1]), torch.zeros(1, 33), form)
