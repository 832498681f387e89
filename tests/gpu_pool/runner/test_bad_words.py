"""Answers do not contain what they must not, whatever else is switched on.

Each request is forbidden what it says otherwise: pieces of one, two and three tokens of its own
answer. So every answer changes, and one that forgets a token of its history says a piece.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaForCausalLM

from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings
from gpu_pool.sampling.bad_words import BadWords
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.engine.list_matcher import Lists
from tests.gpu_pool.runner.lane_rig import LaneRig, make_kernels
from tests.gpu_pool.runner.tape import TapeRecorder
from tests.gpu_pool.sampling.markov_llama import VOCAB_SIZE as MARKOV_SIZE
from tests.gpu_pool.sampling.markov_llama import read_transitions, write_markov_llama
from tests.gpu_pool.sampling.statistics_of_draws import is_drawn_from
from tests.gpu_pool.tiny_llama import write_tiny_llama

NUM_REQUESTS = 16
NUM_TOKENS = 30
Spellings = tuple[tuple[int, ...], ...]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are one operator each."""
    make_kernels(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path)
    return path


def create_requests() -> list[AddSequence]:
    """Half draw by a seed, half share a prefix, some repeat themselves."""
    generator = torch.Generator().manual_seed(2)
    prefix = torch.randint(0, 300, (40,), generator=generator).tolist()
    requests: list[AddSequence] = []
    for n in range(NUM_REQUESTS):
        own = torch.randint(0, 300, (3 + 2 * n,), generator=generator).tolist()
        prompt = [prefix + own, (own * 9)[:60]][n % 2]
        temperature = 1.0 if n % 4 < 2 else 0.0
        requests.append(
            create_request(n, prompt, max_tokens=NUM_TOKENS, temperature=temperature, seed=n)
        )
    return requests


def forbid(request: AddSequence, spellings: Sequence[Sequence[int]]) -> AddSequence:
    """`request`, whose answer must not contain some token sequences."""
    bad = tuple([tuple(spelling) for spelling in spellings])
    sampling = msgspec.structs.replace(request.sampling, bad_spellings=bad)
    return msgspec.structs.replace(request, sampling=sampling)


def cut_pieces(answer: Sequence[int]) -> list[Sequence[int]]:
    """Of one, two and three tokens."""
    return [answer[2:3], answer[5:7], answer[8:11], answer[14:17], answer[20:22]]


def has_piece(answer: Sequence[int], spellings: Sequence[Sequence[int]]) -> bool:
    """True when a spelling stands somewhere in `answer`."""
    return any(
        list(answer[first : first + len(spelling)]) == list(spelling)
        for spelling in spellings
        for first in range(len(answer))
    )


@pytest.fixture(scope="module")
def free(folder: Path) -> list[list[int]]:
    """What is answered where nothing is forbidden: the control of all that follows."""
    answers = LaneRig(folder, is_ahead=False).serve(create_requests())
    assert all(has_piece(answer, cut_pieces(answer)) for answer in answers)
    assert len({tuple(answer) for answer in answers}) == NUM_REQUESTS
    return answers


@pytest.fixture(scope="module")
def bound(free: list[list[int]]) -> list[AddSequence]:
    """The same requests, forbidden what they say."""
    pairs = zip(create_requests(), free, strict=True)
    return [forbid(request, cut_pieces(answer)) for request, answer in pairs]


@pytest.fixture(scope="module")
def expected(folder: Path, bound: list[AddSequence]) -> list[list[int]]:
    """What a lane that goes step by step answers then."""
    return LaneRig(folder, is_ahead=False, prefix_caching=False).serve(bound)


def test_no_answer_has_a_forbidden_piece_and_all_are_other_answers(
    free: list[list[int]], expected: list[list[int]]
) -> None:
    for before, after in zip(free, expected, strict=True):
        assert not has_piece(after, cut_pieces(before))
        assert len(after) == NUM_TOKENS
        assert after[:2] == before[:2]  # what leads up to a piece may be said
        assert after != before


@torch.inference_mode()
def test_greedy_answers_are_those_of_transformers_with_the_same_tokens_left_out(
    folder: Path, bound: list[AddSequence], expected: list[list[int]]
) -> None:
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    greedy = [n for n, request in enumerate(bound) if request.sampling.temperature == 0]
    for n in greedy:
        answer: list[int] = []
        for _ in range(NUM_TOKENS):
            logits_V = model(torch.tensor([[*bound[n].token_ids, *answer]])).logits[0, -1]
            for spelling in bound[n].sampling.bad_spellings:
                rest = list(spelling[:-1])
                if answer[len(answer) - len(rest) :] == rest:
                    logits_V[spelling[-1]] = -torch.inf
            answer.append(int(logits_V.argmax()))
        assert expected[n] == answer
    assert len(greedy) == NUM_REQUESTS // 2


GUESSES = NgramSettings(min_match_tokens=1)
CROWD: dict[str, Any] = {"num_blocks": 40, "max_batch_tokens": 64, "max_chunk_tokens": 23}
LIMITS: dict[str, dict[str, Any]] = {
    "step by step": {"is_ahead": False},
    "step by step, guessing": {"is_ahead": False, "ngram": GUESSES},
    "step by step, crowded": {"is_ahead": False, **CROWD},
    "ahead": {},
    "ahead, crowded": CROWD,
    "ahead, swapped": {**CROWD, "swap_bytes": 1 << 20},
}


@pytest.mark.parametrize("name", LIMITS)
def test_nothing_that_is_switched_on_changes_an_answer(
    folder: Path, bound: list[AddSequence], expected: list[list[int]], name: str
) -> None:
    limits = LIMITS[name]
    rig = LaneRig(folder, TapeRecorder(), **limits)
    assert rig.serve(bound) == expected
    scheduled = [item for plan in rig.plans for item in plan.scheduled]
    assert any(item.draft_token_ids for item in scheduled) == ("guessing" in name)
    assert (sum(len(plan.new) for plan in rig.plans) > NUM_REQUESTS) == ("num_blocks" in limits)
    assert rig.most_under_way == int(limits.get("is_ahead", True))


def test_beside_requests_without_bad_words_nobody_changes(
    folder: Path, bound: list[AddSequence], free: list[list[int]], expected: list[list[int]]
) -> None:
    plain = create_requests()
    mixed = [(bound if n % 3 == 1 else plain)[n] for n in range(NUM_REQUESTS)]
    answers = [(expected if n % 3 == 1 else free)[n] for n in range(NUM_REQUESTS)]
    assert LaneRig(folder, TapeRecorder()).serve(mixed) == answers


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_answer_that_goes_on_elsewhere_keeps_to_it(
    folder: Path, bound: list[AddSequence], expected: list[list[int]], is_ahead: bool
) -> None:
    for num_told in (1, 5, 6, 9, 10, 21):
        resumed = [
            msgspec.structs.replace(
                request,
                token_ids=(*request.token_ids, *answer[:num_told]),
                num_generated_tokens=num_told,
            )
            for request, answer in zip(bound, expected, strict=True)
        ]
        rest = [answer[num_told:] for answer in expected]
        assert LaneRig(folder, TapeRecorder(), is_ahead=is_ahead).serve(resumed) == rest


def test_the_prompt_is_no_part_of_the_answer(folder: Path, free: list[list[int]]) -> None:
    greedy = 2
    request, (first, *_) = create_requests()[greedy], free[greedy]
    assert request.sampling.temperature == 0
    across, within = [(request.token_ids[-1], first)], [(first,)]
    (said,) = LaneRig(folder).serve([forbid(request, across)])
    assert said == free[greedy]
    (other,) = LaneRig(folder).serve([forbid(request, within)])
    assert other[0] != first


@pytest.mark.parametrize("is_ahead", [False, True])
def test_where_a_grammar_and_bad_words_leave_nothing_the_request_fails_by_name(
    folder: Path, free: list[list[int]], is_ahead: bool
) -> None:
    grammar = "5|6 7|8 9|10"
    plain = create_requests()[0]
    rig = LaneRig(folder, TapeRecorder(), is_ahead=is_ahead, create_matcher=Lists)
    bound = create_request(100, [1, 2, 3], max_tokens=20, grammar=grammar)
    requests = [
        forbid(bound, [(6,), (5, 7), (8, 9)]),
        msgspec.structs.replace(forbid(bound, [(5,), (6,)]), sequence_id=101),
        msgspec.structs.replace(forbid(bound, [(7,), (8, 9), (8, 10)]), sequence_id=102),
        plain,
    ]
    whole, at_once, later, neighbour = rig.serve(requests)
    assert whole == [5, 8, 10]
    assert (at_once, rig.outcomes[101].error_codes) == ([], ["constraint_unmet"])
    assert (later[1:], rig.outcomes[102].error_codes) == ([8], ["constraint_unmet"])
    assert neighbour == free[0]


# -- a model that remembers one token, and so repeats itself --------------------------------------

NUM_DRAWS = 150
PAIRS: Spellings = ((0, 1), (1, 1), (2, 5), (3, 3), (4, 0), (5, 4))


@pytest.fixture(scope="module")
def markov(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoint."""
    path = tmp_path_factory.mktemp("markov")
    write_markov_llama(path)
    return path


def say_much(markov: Path, spellings: Spellings, **limits: Any) -> tuple[list[list[int]], int]:
    """Long sampled answers, and how many guesses there were."""
    requests = [
        create_request(n, [n % MARKOV_SIZE], max_tokens=NUM_DRAWS, temperature=1.0, seed=n)
        for n in range(NUM_REQUESTS)
    ]
    rig = LaneRig(markov, TapeRecorder(), num_blocks=200, **limits)
    answers = rig.serve([forbid(request, spellings) for request in requests])
    num_guesses = sum(len(w.draft_token_ids) for plan in rig.plans for w in plan.scheduled)
    return answers, num_guesses


@pytest.mark.parametrize("is_ahead", [False, True])
def test_behind_every_token_draws_follow_the_softmax_of_what_is_left_with_guesses_and_without(
    markov: Path, is_ahead: bool
) -> None:
    answers, _ = say_much(markov, PAIRS, is_ahead=is_ahead)
    guessed, num_guesses = say_much(markov, PAIRS, is_ahead=is_ahead, ngram=GUESSES)
    assert guessed == answers
    assert num_guesses > NUM_REQUESTS
    logits_VV = read_transitions(markov).clone()
    counts = torch.zeros(MARKOV_SIZE, MARKOV_SIZE, dtype=torch.long)
    for last, token_id in (pair for answer in answers for pair in itertools.pairwise(answer)):
        counts[last, token_id] += 1
    everything = logits_VV.softmax(-1)
    for last, forbidden in PAIRS:
        logits_VV[last, forbidden] = -torch.inf
    left = logits_VV.softmax(-1)
    assert counts.sum(-1).min() > 200
    for last in range(MARKOV_SIZE):
        assert is_drawn_from(counts[last], left[last])
        assert not is_drawn_from(counts[last], everything[last])  # the control


# -- controls: each breaks one rule, and the same runs find it ------------------------------------


def _forget_what_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """A step does not know what the one before it draws."""
    patch.setattr(BadWords, "add_drawn", lambda self, token_ids_N: None)


def _ignore_guesses(patch: pytest.MonkeyPatch) -> None:
    """Behind a guess the same is forbidden as in front of it."""
    told = BadWords.forbid
    patch.setattr(BadWords, "forbid", lambda self, logits_V, drafts=(): told(self, logits_V))


@pytest.mark.parametrize(
    ("defect", "limits"),
    [
        (_forget_what_is_on_its_way, {}),
        (_ignore_guesses, {"is_ahead": False, "ngram": GUESSES}),
        (_ignore_guesses, {"ngram": GUESSES}),
    ],
)
def test_a_defect_shows(
    markov: Path, defect: Any, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, _ = say_much(markov, PAIRS, **limits)
    assert not any(has_piece(answer, PAIRS) for answer in answers)
    defect(monkeypatch)
    wrong, _ = say_much(markov, PAIRS, **limits)
    assert any(has_piece(answer, PAIRS) for answer in wrong)
