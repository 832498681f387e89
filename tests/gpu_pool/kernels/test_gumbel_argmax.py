"""The race of noise: the kernel picks what the sampler picks, and picks by probability."""

import pytest
import torch

from gpu_pool.kernels.gumbel_argmax import gumbel_argmax_reference, gumbel_argmax_triton
from gpu_pool.sampling.noise import draw_log_exponentials, mix_key
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize("vocab_size", [5, 1000, 8192, 20_001])
def test_the_kernel_draws_the_tokens_of_the_sampler(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(12, vocab_size, generator=generator).mul_(3).to(DEVICE)
    temperatures = torch.tensor([0.0, 0.3, 1.0, 2.5] * 3, device=DEVICE)
    cutoffs = torch.full((12,), float("-inf"), device=DEVICE)
    cutoffs[5:9] = -1.5
    keys = [mix_key(seed, 100 + seed) for seed in range(12)]
    noise = draw_log_exponentials(keys, vocab_size, torch.device(DEVICE))
    expected = gumbel_argmax_reference(logits, noise, temperatures, cutoffs)
    keys_R2 = torch.tensor(keys, dtype=torch.int32, device=DEVICE)
    actual = gumbel_argmax_triton(logits, keys_R2, temperatures, cutoffs)
    assert actual.tolist() == expected.tolist()
    assert expected[0] == logits[0].argmax()
