"""Bad words: what would complete one behind the answer so far is not drawn, and all else is."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.plan import NO_TOKEN
from gpu_pool.sampling.bad_words import BadWords
from gpu_pool.sampling.sampler import SamplingRow, sample
from tests.gpu_pool.sampling.statistics_of_draws import is_drawn_from

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 1.5])
VOCAB = LOGITS.shape[0]
Spellings = Sequence[Sequence[int]]
TOKENS = st.integers(0, 3)
"""So few that endings meet spellings now and then."""


def list_forbidden(words: BadWords, guesses: Sequence[int] = ()) -> set[int]:
    """The tokens that are made impossible."""
    logits_V = LOGITS.clone()
    words.forbid(logits_V, guesses)
    kept_V = logits_V.isfinite()
    assert logits_V[kept_V].equal(LOGITS[kept_V]), "what may be drawn has changed"
    return set((~kept_V).nonzero()[:, 0].tolist())


def would_complete(spellings: Spellings, answer: Sequence[int]) -> set[int]:
    """The definition: tokens with which the answer would end with a spelling."""
    return {
        token_id
        for token_id in range(VOCAB)
        for spelling in spellings
        if [*answer, token_id][-len(spelling) :] == list(spelling)
    }


def test_a_word_of_one_token_is_forbidden_wherever_it_would_stand() -> None:
    words = BadWords([(3,)], [], CPU)
    assert list_forbidden(words) == {3}
    for token_id in (5, 3, 1):
        words.add(token_id)
        assert list_forbidden(words) == {3}


def test_of_a_word_of_several_tokens_only_the_last_is_forbidden_behind_the_others() -> None:
    words = BadWords([(1, 2, 3)], [], CPU)
    forbidden: list[set[int]] = []
    for token_id in (1, 2, 4, 2, 1, 1, 2, 1):
        words.add(token_id)
        forbidden.append(list_forbidden(words))
    assert forbidden == [set(), {3}, set(), set(), set(), set(), {3}, set()]


def test_words_that_overlap_or_end_alike_are_told_apart() -> None:
    words = BadWords([(1, 2), (1, 2, 3), (2, 3), (4, 3), (2, 1)], [], CPU)
    words.add(1)
    assert list_forbidden(words) == {2}
    words.add(2)
    assert list_forbidden(words) == {3, 1}
    words.add(4)
    assert list_forbidden(words) == {3}


def test_an_answer_that_went_on_elsewhere_counts_from_its_beginning() -> None:
    assert list_forbidden(BadWords([(1, 2)], [7, 7, 1], CPU)) == {2}
    assert list_forbidden(BadWords([(1, 2)], [1, 7], CPU)) == set()


@given(
    spellings=st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=6),
    before=st.lists(TOKENS, max_size=6),
    since=st.lists(TOKENS, max_size=6),
    guesses=st.lists(TOKENS, max_size=5),
)
def test_forbidden_is_what_the_definition_forbids(
    spellings: list[list[int]], before: list[int], since: list[int], guesses: list[int]
) -> None:
    words = BadWords(spellings, before, CPU)
    answer = list(before)
    for token_id in since:
        assert list_forbidden(words) == would_complete(spellings, answer)
        words.add(token_id)
        answer.append(token_id)
    for num in range(len(guesses) + 1):
        behind = would_complete(spellings, answer + guesses[:num])
        assert list_forbidden(words, guesses[:num]) == behind
    assert list_forbidden(words) == would_complete(spellings, answer), "guesses have stayed"
    words.add_drawn(torch.tensor(guesses, dtype=torch.int64))
    assert list_forbidden(words) == would_complete(spellings, answer + guesses)


# -- drawing --------------------------------------------------------------------------------------


def create_row(position: int, words: BadWords | None, **fields: float) -> SamplingRow:
    """A row with bad words."""
    sampling = SamplingParams(seed=5, **fields)  # type: ignore[arg-type]
    return SamplingRow(sampling, position, None, bad_words=words)


def count_draws(words: BadWords | None, num_draws: int = 20_000, **fields: float) -> Tensor:
    """How often each token is drawn, `[V]`."""
    rows = [create_row(position, words, **fields) for position in range(num_draws)]
    token_ids = sample(LOGITS.repeat(num_draws, 1), rows)
    return torch.bincount(torch.tensor(token_ids), minlength=VOCAB)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_softmax_of_what_is_left(temperature: float) -> None:
    words = BadWords([(0,), (6, 7), (5, 1)], [6], CPU)
    left = (LOGITS.double() / temperature).softmax(-1)
    left[[0, 7]] = 0
    counts = count_draws(words, temperature=temperature)
    assert is_drawn_from(counts, left / left.sum())
    assert not is_drawn_from(count_draws(None, temperature=temperature), left / left.sum())


def test_filters_see_what_is_left() -> None:
    words = BadWords([(0,), (6, 7)], [6], CPU)
    assert count_draws(words, 50, top_k=1)[1] == 50
    assert count_draws(None, 50, top_k=1)[0] == 50


def test_no_temperature_draws_a_bad_word_and_neighbours_may() -> None:
    words = BadWords([(0,), (6, 7)], [6], CPU)
    bad, plain = create_row(0, words, temperature=0.0), create_row(0, None, temperature=0.0)
    assert sample(LOGITS.repeat(3, 1), [plain, bad, plain]) == [0, 1, 0]


@pytest.mark.parametrize("garbage", [float("inf"), float("-inf"), float("nan")])
def test_a_forbidden_token_is_not_drawn_whatever_its_logit(garbage: float) -> None:
    logits_V = LOGITS.clone()
    logits_V[3] = garbage
    words = BadWords([(3,)], [], CPU)
    (token_id,) = sample(logits_V[None], [create_row(0, words, temperature=0.0)])
    assert token_id == 0


def test_where_nothing_is_left_nothing_is_drawn_and_neighbours_go_on() -> None:
    everything = BadWords([(token_id,) for token_id in range(VOCAB)], [], CPU)
    rows = [create_row(0, everything), create_row(0, None, temperature=0.0)]
    assert sample(LOGITS.repeat(2, 1), rows) == [NO_TOKEN, 0]


def test_a_bias_gives_no_forbidden_token_back_and_a_mask_forbids_beside_it() -> None:
    words = BadWords([(0,), (3,)], [], CPU)
    sampling = SamplingParams(temperature=0.0, seed=1, logit_bias=((0, 100.0), (3, 100.0)))
    assert sample(LOGITS[None].clone(), [SamplingRow(sampling, 0, None, None, words)]) == [7]
    allowed = (1 << 3 | 1 << 5 | 1 << 6).to_bytes(4, "little")
    assert sample(LOGITS[None].clone(), [SamplingRow(sampling, 0, None, allowed, words)]) == [5]
