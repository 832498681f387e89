"""The same tokens whatever is switched on: cache, chunks, neighbours, preemption, swap, guesses."""

from pathlib import Path

import msgspec
import pytest
import torch

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.engine.messages import AddSequence
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.feature_runs import (
    CALM,
    NGRAM,
    Feature,
    assert_has_happened,
    find_largest_piece,
    limit,
    list_differences,
    run,
)
from tests.gpu_pool.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.slow

NUM_REQUESTS = 33
NUM_TOKENS = 24
SCARCE = 45
"""Blocks for about six of the requests."""
SCARCER = 24
"""The same where prefixes are shared."""

NOTHING_TWICE = tuple([(n, n) for n in range(300)])

FEATURES = {
    "cache": Feature(limit(2048, 2048, prefix_caching=True), at_once=1),
    "chunks of 16": Feature(limit(16, 16, 16), at_once=1),
    "chunks of 64": Feature(limit(64, 64), at_once=4),
    "batch of 8": Feature(limit(2048, 2048), at_once=8, least_at_once=8),
    "batch of 33": Feature(limit(2048, 2048), least_at_once=33),
    "preemption": Feature(limit(64, 23), SCARCE),
    "preemption and cache": Feature(limit(64, 23, prefix_caching=True), SCARCER),
    "swap": Feature(limit(64, 23), SCARCE, swap_bytes=1 << 20),
    "guesses": Feature(limit(2048, 2048, ngram=NGRAM), at_once=1),
    "guesses in a batch": Feature(limit(2048, 2048, ngram=NGRAM)),
    "everything": Feature(
        limit(64, 23, prefix_caching=True, ngram=NGRAM), SCARCER, swap_bytes=1 << 20
    ),
}


def create_requests() -> list[AddSequence]:
    """Half share a prefix, half draw by a seed, some repeat themselves, some must not."""
    generator = torch.Generator().manual_seed(4)
    prefix = torch.randint(0, 300, (37,), generator=generator).tolist()
    requests: list[AddSequence] = []
    for n in range(NUM_REQUESTS):
        length = int(torch.randint(1, 60, (1,), generator=generator))
        own = torch.randint(0, 300, (length,), generator=generator).tolist()
        prompt = [prefix + own, own, (own * 9)[:70]][n % 3]
        temperature = 0.7 if n % 4 == 3 else 0.0
        request = create_request(
            n,
            prompt,
            max_tokens=NUM_TOKENS,
            temperature=temperature,
            seed=n,
            num_logprobs=1,
        )
        if n % 5 == 0:
            sampling = msgspec.structs.replace(request.sampling, bad_spellings=NOTHING_TWICE)
            request = msgspec.structs.replace(request, sampling=sampling)
        requests.append(request)
    return requests


@pytest.fixture(scope="module", params=[DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, DtypeChoice]:
    """A tiny random model and in what it computes."""
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path)
    return path, request.param


@pytest.fixture(scope="module")
def calm(checkpoint: tuple[Path, DtypeChoice]) -> EngineRig:
    """What every request gets alone."""
    return run(*checkpoint, create_requests(), CALM)


@pytest.mark.parametrize("name", FEATURES)
def test_no_feature_changes_a_token_or_a_score(
    name: str, checkpoint: tuple[Path, DtypeChoice], calm: EngineRig
) -> None:
    feature = FEATURES[name]
    rig = run(*checkpoint, create_requests(), feature)
    assert {len(outcome.token_ids) for outcome in rig.outcomes.values()} == {NUM_TOKENS}
    assert not list_differences(rig, calm)
    assert_has_happened(feature, rig)


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_no_chunk_of_a_long_prompt_changes_a_bit(
    chunk: int, checkpoint: tuple[Path, DtypeChoice]
) -> None:
    generator = torch.Generator().manual_seed(5)
    prompts = torch.randint(0, 300, (4, 900), generator=generator).tolist()
    requests = [create_request(n, prompt, max_tokens=8) for n, prompt in enumerate(prompts)]
    calm = run(*checkpoint, requests, CALM)
    feature = Feature(limit(chunk, chunk, min(chunk, 64)), at_once=4)
    rig = run(*checkpoint, requests, feature)
    assert find_largest_piece(rig) == chunk
    assert find_largest_piece(calm) == len(prompts[0])
    assert not list_differences(rig, calm)


def test_the_calm_run_tells_requests_apart(calm: EngineRig) -> None:
    """The control of all of the above: answers differ and scores are no constants."""
    answers = {tuple(outcome.token_ids) for outcome in calm.outcomes.values()}
    assert len(answers) > NUM_REQUESTS // 2
    logprobs = {score.logprob for o in calm.outcomes.values() for score in o.scores}
    assert len(logprobs) > NUM_REQUESTS * NUM_TOKENS // 4
