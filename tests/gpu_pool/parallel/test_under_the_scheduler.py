"""Ranks under the real scheduler: cache, chunks, preemption, guesses, seeds and several steps in
flight change no answer.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.parallel.place import ParallelShape
from gpu_pool.plan import Executor
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, assert_no_leak, create_request
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.parallel.thread_ranks import ThreadExecutor

NUM_REQUESTS = 8
NUM_TOKENS = 24
NOTHING_TWICE = tuple([(n, n) for n in range(300)])
CALM = SchedulerSettings(prefix_caching=False)
CROWDED = SchedulerSettings(
    max_batch_tokens=64, max_chunk_tokens=23, ngram=NgramSettings(min_match_tokens=1)
)
SCARCE = 10
"""Blocks for about three of the requests."""


def create_requests() -> list[AddSequence]:
    """Some share a prefix, some repeat themselves, some draw by a seed, some have bad words."""
    prefix = create_prompt(37, 9)
    requests: list[AddSequence] = []
    for n in range(NUM_REQUESTS):
        own = create_prompt(5 + 4 * n, n)
        prompt = [prefix + own, own, (own * 9)[:50]][n % 3]
        temperature = 0.7 if n % 4 == 3 else 0.0
        request = create_request(n, prompt, max_tokens=NUM_TOKENS, temperature=temperature, seed=n)
        if n % 2:
            sampling = msgspec.structs.replace(request.sampling, bad_spellings=NOTHING_TWICE)
            request = msgspec.structs.replace(request, sampling=sampling)
        requests.append(request)
    return requests


def run(executor: Executor, settings: SchedulerSettings) -> EngineRig:
    """All requests, together."""
    rig = EngineRig(settings, executor.info)
    rig.executor = executor  # type: ignore[assignment]
    for request in create_requests():
        rig.add(request)
    rig.run()
    assert_no_leak(rig)
    return rig


@pytest.mark.parametrize("shape", [ParallelShape(1, 2), ParallelShape(2, 2)], ids=str)
def test_crowded_ranks_answer_as_a_calm_process_does(shape: ParallelShape, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama", num_hidden_layers=4)
    settings = WorkerSettings(model_dir=folder, num_blocks=200, num_threads=1)
    calm = run(create_executor(settings), CALM)
    ranks = ThreadExecutor(
        WorkerSettings(model_dir=folder, num_blocks=SCARCE, swap_bytes=1 << 16, num_threads=1),
        shape,
    )
    try:
        crowded = run(ranks, CROWDED)
    finally:
        ranks.close()
    for n in range(NUM_REQUESTS):
        assert len(calm.outcomes[n].token_ids) == NUM_TOKENS
        assert crowded.outcomes[n].token_ids == calm.outcomes[n].token_ids, n
    assert ranks.most_in_flight == 2
    assert sum(len(plan.new) for plan in crowded.plans) > NUM_REQUESTS  # some were preempted
    assert any(item.draft_token_ids for plan in crowded.plans for item in plan.scheduled)
    assert any(max(outcome.num_cached_tokens) > 0 for outcome in crowded.outcomes.values())


@pytest.mark.parametrize("num_stages", [1, 2])
def test_steps_of_a_pipeline_share_out_the_sequences(num_stages: int) -> None:
    info = replace(create_double_info(max_in_flight=2), num_stages=num_stages)
    rig = EngineRig(SchedulerSettings(), info)
    requests = [create_request(n, [n + 1, 2, 3], max_tokens=20) for n in range(6)]
    outcomes = [rig.add(request) for request in requests]
    rig.run()
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.token_ids == rig.predict(request)
    decodes = [{item.sequence_id for item in plan.scheduled} for plan in rig.plans[3:-3]]
    shared = [first & second for first, second in pairwise(decodes)]
    if num_stages == 2:  # what one step draws, no step beside it needs
        assert not any(shared)
        assert max(len(ids) for ids in decodes) == 3
    else:  # the control plans ahead of what it knows
        assert all(shared)
