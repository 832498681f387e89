"""Penalties: the kernel against the reference, each alone and all together."""

import pytest
import torch

from gpu_pool.kernels.penalise import Penalties, penalise_reference, penalise_triton
from tests.gpu_pool.kernels.largest_result import LargestResult
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton


@needs_triton
@pytest.mark.parametrize("vocab_size", [3, 1024, 2500])
@pytest.mark.parametrize(
    "penalties",
    [
        Penalties(),
        Penalties(repetition=1.3),
        Penalties(frequency=-0.7),
        Penalties(presence=1.1),
        Penalties(repetition=0.6, frequency=0.5, presence=-0.4),
    ],
)
def test_the_kernel_does_what_the_reference_does(vocab_size: int, penalties: Penalties) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(vocab_size, generator=generator).to(DEVICE)
    logits[1] = float("-inf")
    is_seen = (torch.rand(vocab_size, generator=generator) < 0.5).to(DEVICE)
    output = torch.randint(0, 4, (vocab_size,), generator=generator).int().to(DEVICE) * is_seen
    expected = logits.clone()
    penalise_reference(expected, is_seen, output, penalties)
    penalise_triton(logits, is_seen, output, penalties)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)


def test_the_reference_looks_at_nothing_that_never_occurred() -> None:
    penalties = Penalties(repetition=1.3, frequency=0.5, presence=-0.4)
    logits = torch.randn(40_000, generator=torch.Generator().manual_seed(1))
    logits[7], logits[8], logits[9] = float("-inf"), float("inf"), float("nan")
    is_seen, output = torch.zeros(40_000, dtype=torch.bool), torch.zeros(40_000).int()
    is_seen[:50] = True
    output[:20] = 3
    expected = torch.where(logits > 0, logits / 1.3, logits * 1.3)
    expected = torch.where(is_seen, expected, logits) - output * 0.5 - (output > 0) * -0.4
    with LargestResult() as made:
        penalise_reference(logits, is_seen, output, penalties)
    assert torch.equal(logits.nan_to_num(5), expected.nan_to_num(5))
    assert made.num_elements == 50
    with LargestResult() as made:  # the control
        logits.mul(2)
    assert made.num_elements == 40_000
