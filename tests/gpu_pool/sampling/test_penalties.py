"""Penalties against their definitions."""

import torch

from contracts.inference import SamplingParams
from gpu_pool.sampling.penalties import TokenCounts

CPU = torch.device("cpu")


def penalise(logits: list[float], counts: TokenCounts, **fields: float) -> list[float]:
    """Logits after the penalties."""
    row = torch.tensor(logits, dtype=torch.float32)
    counts.penalise(row, SamplingParams(**fields))  # type: ignore[arg-type]
    return row.tolist()


def test_repetition_looks_at_prompt_and_output_and_moves_logits_down() -> None:
    counts = TokenCounts([0], [1], 4, CPU)
    assert penalise([2, -2, 2, -2], counts, repetition_penalty=2.0) == [1, -4, 2, -2]


def test_frequency_counts_output_only() -> None:
    counts = TokenCounts([0, 0], [1, 1, 2], 4, CPU)
    assert penalise([0, 0, 0, 0], counts, frequency_penalty=0.5) == [0, -1, -0.5, 0]


def test_presence_counts_each_token_of_the_output_once() -> None:
    counts = TokenCounts([0, 0], [1, 1, 2], 4, CPU)
    counts.add(3)
    assert penalise([0, 0, 0, 0], counts, presence_penalty=0.5) == [0, -0.5, -0.5, -0.5]


def test_all_three_apply_in_order() -> None:
    counts = TokenCounts([], [0, 0], 2, CPU)
    fields = {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.5}
    assert penalise([4, 4], counts, **fields) == [2 - 2 - 0.5, 4]


def test_only_changed_defaults_count_as_penalties() -> None:
    assert not SamplingParams().has_penalties
    assert SamplingParams(repetition_penalty=1.1).has_penalties
    assert SamplingParams(frequency_penalty=-0.1).has_penalties
    assert SamplingParams(presence_penalty=0.1).has_penalties


def test_tokens_on_the_device_count_as_those_of_the_host_do() -> None:
    one, other = TokenCounts([0], [2], 5, CPU), TokenCounts([0], [2], 5, CPU)
    for token_id in (3, 2, 3):
        one.add(token_id)
    other.add_drawn(torch.tensor([3, 2, 3]))
    fields = {"repetition_penalty": 2.0, "frequency_penalty": 1.0}
    assert penalise([4, 4, 4, 4, 4], one, **fields) == [2, 4, 0, 0, 4]
    assert penalise([4, 4, 4, 4, 4], other, **fields) == [2, 4, 0, 0, 4]
