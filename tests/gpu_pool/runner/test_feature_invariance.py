"""The same tokens whatever is switched on: cache, chunks, neighbours, preemption, swap, guesses.

A calm run computes each request alone, in one piece and without a cache. Every other run must give
the same tokens and, bit for bit, the same scores.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, assert_no_leak, create_request
from tests.gpu_pool.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.slow

NUM_REQUESTS = 33
NUM_TOKENS = 24
AMPLE = 600
"""Blocks that nobody ever lacks."""
SCARCE = 45
"""Blocks for about six of the requests."""
SCARCER = 24
"""The same where prefixes are shared."""


@dataclass(frozen=True, slots=True)
class Feature:
    """How a run differs from the calm one."""

    settings: SchedulerSettings
    num_blocks: int = AMPLE
    swap_bytes: int = 0
    at_once: int = NUM_REQUESTS
    """Requests that are there together."""


def limit(batch: int, chunk: int, running: int = 64, **fields: object) -> SchedulerSettings:
    """Settings without a cache unless `fields` say so."""
    return SchedulerSettings(
        max_batch_tokens=batch,
        max_chunk_tokens=chunk,
        max_running=running,
        **({"prefix_caching": False} | fields),  # type: ignore[arg-type]
    )


NGRAM = NgramSettings(min_match_tokens=1)
CALM = Feature(limit(2048, 2048), at_once=1)
FEATURES = {
    "cache": Feature(limit(2048, 2048, prefix_caching=True), at_once=1),
    "chunks of 16": Feature(limit(33, 16, 32), at_once=1),
    "chunks of 64": Feature(limit(64, 64), at_once=4),
    "chunks of 512": Feature(limit(512, 512), at_once=4),
    "batch of 8": Feature(limit(2048, 2048), at_once=8),
    "batch of 33": Feature(limit(2048, 2048)),
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
    """Half share a prefix, half draw by a seed, some repeat themselves."""
    generator = torch.Generator().manual_seed(4)
    prefix = torch.randint(0, 300, (37,), generator=generator).tolist()
    requests: list[AddSequence] = []
    for n in range(NUM_REQUESTS):
        length = int(torch.randint(1, 60, (1,), generator=generator))
        own = torch.randint(0, 300, (length,), generator=generator).tolist()
        prompt = [prefix + own, own, (own * 9)[:70]][n % 3]
        temperature = 0.7 if n % 4 == 3 else 0.0
        requests.append(
            create_request(
                n,
                prompt,
                max_tokens=NUM_TOKENS,
                temperature=temperature,
                seed=n,
                num_logprobs=1,
            )
        )
    return requests


@pytest.fixture(scope="module", params=[DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, DtypeChoice]:
    """A tiny random model and in what it computes."""
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path)
    return path, request.param


def run(checkpoint: tuple[Path, DtypeChoice], feature: Feature) -> EngineRig:
    """All requests through a real model under the real scheduler."""
    folder, dtype = checkpoint
    executor = create_executor(
        WorkerSettings(
            model_dir=folder,
            dtype=dtype,
            num_blocks=feature.num_blocks,
            swap_bytes=feature.swap_bytes,
            num_threads=1,
            native_kernels=True,
        )
    )
    rig = EngineRig(feature.settings, executor.info)
    rig.executor = executor  # type: ignore[assignment]
    requests = create_requests()
    for first in range(0, NUM_REQUESTS, feature.at_once):
        for request in requests[first : first + feature.at_once]:
            rig.add(request)
        rig.run()
    assert_no_leak(rig)
    return rig


@pytest.fixture(scope="module")
def calm(checkpoint: tuple[Path, DtypeChoice]) -> EngineRig:
    """What every request gets alone."""
    return run(checkpoint, CALM)


@pytest.mark.parametrize("name", FEATURES)
def test_no_feature_changes_a_token_or_a_score(
    name: str, checkpoint: tuple[Path, DtypeChoice], calm: EngineRig
) -> None:
    feature = FEATURES[name]
    rig = run(checkpoint, feature)
    for n in range(NUM_REQUESTS):
        assert len(calm.outcomes[n].token_ids) == NUM_TOKENS
        assert rig.outcomes[n].token_ids == calm.outcomes[n].token_ids, f"request {n}"
        told = msgspec.json.encode(rig.outcomes[n].scores)
        assert told == msgspec.json.encode(calm.outcomes[n].scores), f"request {n}"
    assert_has_happened(name, feature, rig)


def assert_has_happened(name: str, feature: Feature, rig: EngineRig) -> None:
    """The control: the feature did something in this run."""
    num_begun = sum(len(plan.new) for plan in rig.plans)
    assert (num_begun > NUM_REQUESTS) == (feature.num_blocks < AMPLE), name
    assert any(plan.moved_in for plan in rig.plans) == (feature.swap_bytes > 0)
    drafts = [w.draft_token_ids for plan in rig.plans for w in plan.scheduled]
    assert any(drafts) == (feature.settings.ngram is not None)
    cached = [max(outcome.num_cached_tokens) for outcome in rig.outcomes.values()]
    assert (max(cached) > 0) == feature.settings.prefix_caching
    largest = max(len(plan.scheduled) for plan in rig.plans)
    assert (largest > 1) == (feature.at_once > 1)


def test_the_calm_run_tells_requests_apart(calm: EngineRig) -> None:
    """The control of all of the above: answers differ and scores are no constants."""
    answers = {tuple(outcome.token_ids) for outcome in calm.outcomes.values()}
    assert len(answers) > NUM_REQUESTS // 2
    logprobs = {score.logprob for o in calm.outcomes.values() for score in o.scores}
    assert len(logprobs) > NUM_REQUESTS * NUM_TOKENS // 4
