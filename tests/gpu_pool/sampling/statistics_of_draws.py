"""Draws of many seeds, and whether they follow a distribution."""

import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.sampling.biases import Biases
from gpu_pool.sampling.sampler import SamplingRow, sample


def count_draws(logits_V: Tensor, sampling: SamplingParams, num_draws: int) -> Tensor:
    """How often each token is drawn at consecutive positions of one seed, `[V]`."""
    biases = Biases(sampling.logit_bias, logits_V.device) if sampling.logit_bias else None
    rows = [SamplingRow(sampling, position, None, biases=biases) for position in range(num_draws)]
    token_ids = sample(logits_V.repeat(num_draws, 1), rows)
    return torch.bincount(torch.tensor(token_ids), minlength=logits_V.shape[0])


def is_drawn_from(counts_V: Tensor, probabilities_V: Tensor) -> bool:
    """Chi-square at about one in 10⁵ (Wilson and Hilferty), impossible tokens never drawn."""
    possible = probabilities_V > 0
    if counts_V[~possible].any():
        return False
    expected = probabilities_V[possible].double() * counts_V.sum()
    assert expected.min() >= 5, "too few draws for the test"
    statistic = ((counts_V[possible] - expected).square() / expected).sum().item()
    degrees = int(possible.sum()) - 1
    if degrees == 0:
        return True
    spread = 2 / (9 * degrees)
    score = ((statistic / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5
    return score < 4.27
