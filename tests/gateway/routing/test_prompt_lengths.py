"""How many tokens a prompt has, as nodes' counts teach it."""

import pytest

from contracts.ids import ModelName
from gateway.routing.prompt_lengths import PromptLengths

MODEL, OTHER = ModelName("@a/b"), ModelName("@a/c")


def learn(lengths: PromptLengths, num_bytes: int, num_tokens: int, count: int = 1) -> None:
    """So many prompts are counted."""
    for _ in range(count):
        lengths.note(MODEL, num_bytes, num_tokens)


def test_a_tokenizer_of_single_bytes_is_known_after_a_dozen_prompts() -> None:
    lengths = PromptLengths()
    assert lengths.estimate(MODEL, 520) == 131
    learn(lengths, 520, 480, 12)
    assert 400 < lengths.estimate(MODEL, 520) < 490
    learn(lengths, 520, 480, 12)
    assert 470 < lengths.estimate(MODEL, 520) < 490
    assert lengths.estimate(OTHER, 520) == 131


@pytest.mark.parametrize("told", [1, 2**31 - 1])
def test_one_count_changes_little_whatever_it_says(told: int) -> None:
    lengths = PromptLengths()
    learn(lengths, 4000, 1000, 50)
    learn(lengths, 4000, told)
    assert 850 < lengths.estimate(MODEL, 4000) < 1160


def test_sizes_far_from_those_that_were_seen_are_what_they_were() -> None:
    lengths = PromptLengths()
    learn(lengths, 20, 30, 100)
    assert lengths.estimate(MODEL, 20) > 25
    assert lengths.estimate(MODEL, 60) > 80  # as the greetings, which are the nearest
    assert lengths.estimate(MODEL, 400) == 101
    learn(lengths, 400, 200, 100)
    assert 195 < lengths.estimate(MODEL, 400) < 205
    assert lengths.estimate(MODEL, 60) > 80
    assert 780 < lengths.estimate(MODEL, 1600) < 820
    assert lengths.estimate(MODEL, 100_000) == 25_001


def test_what_has_no_text_teaches_nothing() -> None:
    lengths = PromptLengths()
    learn(lengths, 0, 30)
    learn(lengths, 30, 0)
    assert (lengths.estimate(MODEL, 0), lengths.estimate(MODEL, 40)) == (1, 11)


def test_what_is_left_to_compute_is_a_mean_that_one_prompt_moves_little() -> None:
    lengths = PromptLengths()
    assert lengths.find_usual_new(MODEL) == 0.0
    for num_tokens in (200, 200, 200, 600) * 100:
        lengths.note_new(MODEL, num_tokens)
    assert lengths.find_usual_new(MODEL) == pytest.approx(300, rel=0.02)
    lengths.note_new(MODEL, 2**31)
    assert lengths.find_usual_new(MODEL) < 360
    assert lengths.find_usual_new(OTHER) == 0.0
