"""Draws follow the distribution that parameters describe, seed by seed and row by row."""

import pytest
import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.plan import NO_TOKEN
from gpu_pool.sampling.penalties import TokenCounts
from gpu_pool.sampling.sampler import SamplingRow, sample
from tests.gpu_pool.sampling.statistics_of_draws import count_draws, is_drawn_from

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 1.5])
NUM_DRAWS = 20_000


def filtered(kept: list[int], temperature: float = 1.0) -> Tensor:
    """The exact distribution over some tokens."""
    scores = torch.full_like(LOGITS, float("-inf")).double()
    scores[kept] = LOGITS[kept].double() / temperature
    return scores.softmax(-1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, filtered([0, 1, 2, 3, 4, 5, 6, 7])),
        ({"temperature": 2.0}, filtered([0, 1, 2, 3, 4, 5, 6, 7], 2.0)),
        ({"temperature": 0.5}, filtered([0, 1, 2, 3, 4, 5, 6, 7], 0.5)),
        ({"top_k": 3}, filtered([0, 7, 1])),
        ({"top_k": 1}, filtered([0])),
        ({"top_k": 100}, filtered([0, 1, 2, 3, 4, 5, 6, 7])),
        ({"top_p": 0.6}, filtered([0, 7])),
        ({"top_p": 0.7}, filtered([0, 7, 1])),
        ({"top_p": 0.0}, filtered([0])),
        ({"top_k": 3, "top_p": 0.75}, filtered([0, 7])),
        ({"min_p": 0.3}, filtered([0, 7, 1])),
        ({"min_p": 1.0}, filtered([0])),
        ({"top_p": 0.9, "min_p": 0.3, "temperature": 2.0}, filtered([0, 7, 1, 2, 3], 2.0)),
    ],
)
def test_draws_follow_the_exact_distribution(fields: dict[str, float], expected: Tensor) -> None:
    counts = count_draws(LOGITS, SamplingParams(seed=5, **fields), NUM_DRAWS)  # type: ignore[arg-type]
    assert is_drawn_from(counts, expected)


def test_the_statistic_finds_a_small_bias() -> None:
    """The control: one part in ten more of one token is seen."""
    expected = filtered([0, 1, 2, 3, 4, 5, 6, 7])
    biased = expected.clone()
    biased[3] *= 1.25
    counts = count_draws(LOGITS, SamplingParams(seed=5), NUM_DRAWS)
    assert not is_drawn_from(counts, biased / biased.sum())


def test_temperature_0_takes_the_largest() -> None:
    counts = count_draws(LOGITS, SamplingParams(seed=5, temperature=0.0), 10)
    assert counts[0] == 10


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_a_tiny_temperature_takes_the_largest(temperature: float) -> None:
    counts = count_draws(LOGITS * 1e4, SamplingParams(seed=5, temperature=temperature), 10)
    assert counts[0] == 10


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 500, generator=generator)
    kinds = [
        SamplingParams(seed=1, temperature=0.0),
        SamplingParams(seed=2),
        SamplingParams(seed=3, top_k=5),
        SamplingParams(seed=4, top_p=0.8, temperature=1.5),
        SamplingParams(seed=5, min_p=0.1),
    ]
    rows = [SamplingRow(kinds[i % 5], 100 + i, None) for i in range(40)]
    together = sample(logits.clone(), rows)
    alone = [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    assert together == alone


def test_seed_and_position_decide_the_draw() -> None:
    flat = torch.zeros(1, 1000)

    def draw(seed: int, position: int) -> int:
        return sample(flat.clone(), [SamplingRow(SamplingParams(seed=seed), position, None)])[0]

    assert draw(7, 3) == draw(7, 3)
    assert len({draw(7, position) for position in range(20)}) > 15
    assert len({draw(seed, 3) for seed in range(20)}) > 15
    assert draw(-1, 0) == draw(2**64 - 1, 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_a_number_draws_no_token_and_harms_no_neighbour(
    garbage: float, temperature: float
) -> None:
    rows = [SamplingRow(SamplingParams(seed=s, temperature=temperature), 9, None) for s in (1, 2)]
    (expected,) = sample(LOGITS[None].clone(), rows[1:])
    bad, neighbour = sample(torch.stack((torch.full((8,), garbage), LOGITS)), rows)
    assert 0 <= bad < 8 if garbage == float("inf") else bad == NO_TOKEN
    assert neighbour == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_single_nan_is_never_drawn(temperature: float) -> None:
    logits = LOGITS.clone()
    logits[4] = float("nan")
    counts = count_draws(logits, SamplingParams(seed=1, temperature=temperature), 2000)
    assert counts[4] == 0


def test_penalties_apply_to_greedy_rows_too() -> None:
    sampling = SamplingParams(seed=0, temperature=0.0, presence_penalty=2.0)
    counts = TokenCounts([], [0], 8, torch.device("cpu"))
    assert sample(LOGITS[None].clone(), [SamplingRow(sampling, 1, counts)]) == [7]


def test_a_vocabulary_too_large_to_sort_at_first_is_cut_right() -> None:
    """A flat distribution needs more candidates than are looked at first."""
    vocab_size = 5000
    logits = torch.zeros(1, vocab_size)
    logits[0, 4000:] = -30.0
    rows = [SamplingRow(SamplingParams(seed=0, top_p=0.9999), i, None) for i in range(200)]
    drawn = sample(logits.repeat(200, 1), rows)
    assert max(drawn) < 4000
    assert len(set(drawn)) > 150
