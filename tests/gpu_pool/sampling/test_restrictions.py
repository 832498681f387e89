"""Biases and masks act on what is drawn, and on nothing else."""

import pytest
import torch

from contracts.inference import SamplingParams
from gpu_pool.sampling.biases import Biases
from gpu_pool.sampling.sampler import SamplingRow, sample
from tests.gpu_pool.sampling.statistics_of_draws import count_draws, is_drawn_from

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 1.5])


def mask(*allowed: int) -> bytes:
    """A bit for each of `allowed`."""
    return sum(1 << token_id for token_id in allowed).to_bytes(4, "little")


def test_a_bias_moves_the_distribution_by_exactly_that_much() -> None:
    biased = LOGITS.clone()
    biased[5] += 2.5
    biased[0] -= 1.25
    sampling = SamplingParams(seed=5, logit_bias=((5, 1.5), (0, -1.25), (5, 1.0)))
    counts = count_draws(LOGITS, sampling, 20_000)
    assert is_drawn_from(counts, biased.double().softmax(-1))
    assert not is_drawn_from(counts, LOGITS.double().softmax(-1))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_only_allowed_tokens_are_drawn(temperature: float) -> None:
    for position in range(500):
        sampling = SamplingParams(seed=1, temperature=temperature)
        row = SamplingRow(sampling, position, None, mask(3, 6), biases=Biases([(0, 50.0)], CPU))
        (token_id,) = sample(LOGITS[None].clone(), [row])
        assert token_id in (3, 6)


def test_a_mask_and_a_bias_leave_neighbours_alone() -> None:
    greedy = SamplingParams(temperature=0.0, seed=1)
    plain = SamplingRow(greedy, 0, None)
    bound = SamplingRow(greedy, 0, None, mask(4))
    biased = SamplingRow(greedy, 0, None, biases=Biases([(6, 9.0)], CPU))
    logits = LOGITS.repeat(4, 1)
    assert sample(logits, [plain, bound, biased, plain]) == [0, 4, 6, 0]


def test_filters_see_what_the_mask_left() -> None:
    sampling = SamplingParams(seed=1, top_k=1)
    row = SamplingRow(sampling, 0, None, mask(2, 5))
    assert sample(LOGITS[None].clone(), [row]) == [2]
