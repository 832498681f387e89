"""What is drawn follows exact softmax, with guesses and without, and guesses change no token.

Long answers of a model that remembers one token: every transition counts as a draw, and the
guesses, which come from what the answer has said before, are right now and then.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest
import torch
from torch import Tensor

from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.runner import drawing
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.sampling.markov_llama import (
    VOCAB_SIZE,
    read_transitions,
    write_markov_llama,
)
from tests.gpu_pool.sampling.statistics_of_draws import is_drawn_from

pytestmark = pytest.mark.slow

NUM_SEQUENCES: Final = 40
NUM_TOKENS: Final = 150
FILTERS: Final[dict[str, dict[str, float]]] = {
    "all tokens": {},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.75},
    "min-p": {"min_p": 0.35},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("markov")
    write_markov_llama(path)
    return path


def answer(folder: Path, fields: dict[str, float], *, guesses: bool) -> tuple[list[list[int]], int]:
    """Prompt and answer of each sequence, all in one batch, and the number of guessed tokens."""
    executor = create_executor(WorkerSettings(model_dir=folder, num_blocks=600, num_threads=1))
    ngram = NgramSettings(min_match_tokens=1, max_step_drafts=200) if guesses else None
    rig = EngineRig(SchedulerSettings(ngram=ngram), executor.info, check_every=100)
    rig.executor = executor  # type: ignore[assignment]
    for number in range(NUM_SEQUENCES):
        rig.add(draw_request(number, fields))
    rig.run()
    texts = [
        [number % VOCAB_SIZE, *rig.outcomes[number].token_ids] for number in range(NUM_SEQUENCES)
    ]
    num_guessed = sum(len(w.draft_token_ids) for plan in rig.plans for w in plan.scheduled)
    return texts, num_guessed


def draw_request(number: int, fields: dict[str, float]) -> AddSequence:
    """A sampled request with one token of prompt."""
    request = create_request(number, [number % VOCAB_SIZE], max_tokens=NUM_TOKENS)
    sampling = msgspec.structs.replace(request.sampling, temperature=1.0, seed=number, **fields)
    return msgspec.structs.replace(request, sampling=sampling)


def expect(logits_V: Tensor, fields: dict[str, float]) -> Tensor:
    """The exact distribution behind one token, by the definitions of the filters."""
    probabilities = logits_V.softmax(-1)
    order = probabilities.argsort(descending=True)
    if "top_k" in fields:
        probabilities[order[int(fields["top_k"]) :]] = 0
    if "top_p" in fields:
        before = probabilities[order].cumsum(-1) - probabilities[order]
        probabilities[order[before >= fields["top_p"]]] = 0
    if "min_p" in fields:
        probabilities[probabilities < fields["min_p"] * probabilities.max()] = 0
    return probabilities / probabilities.sum()


def follows(texts: Sequence[Sequence[int]], folder: Path, fields: dict[str, float]) -> bool:
    """True when the tokens behind every token are drawn from its distribution."""
    counts = torch.zeros(VOCAB_SIZE, VOCAB_SIZE, dtype=torch.long)
    for text in texts:
        for last, token_id in itertools.pairwise(text):
            counts[last, token_id] += 1
    logits_VV = read_transitions(folder)
    return all(
        is_drawn_from(counts[last], expect(logits_VV[last], fields))
        for last in range(VOCAB_SIZE)
        if counts[last].sum() > 200
    )


@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_exact_softmax_and_guesses_change_no_token(folder: Path, name: str) -> None:
    plain, _ = answer(folder, FILTERS[name], guesses=False)
    assert follows(plain, folder, FILTERS[name])
    guessed, num_guessed = answer(folder, FILTERS[name], guesses=True)
    assert guessed == plain
    assert num_guessed > NUM_SEQUENCES


def accept_more(
    accept: Callable[[Sequence[int], Sequence[int]], tuple[int, ...]],
) -> Callable[[Sequence[int], Sequence[int]], tuple[int, ...]]:
    """A wrong rule: the first guess is taken where it comes before what was drawn.

    A rule that took any guess would not show here: guesses are earlier draws of the same model.
    """

    def wrong(drafts: Sequence[int], drawn: Sequence[int]) -> tuple[int, ...]:
        is_taken = drafts and drafts[0] < drawn[0]
        return accept(drafts, [drafts[0], *drawn[1:]]) if is_taken else accept(drafts, drawn)

    return wrong


def test_a_wrong_rule_of_acceptance_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same draws with a rule that believes guesses are another distribution."""
    monkeypatch.setattr(drawing, "_accept", accept_more(drawing._accept))
    texts, _ = answer(folder, {}, guesses=True)
    assert not follows(texts, folder, {})
