"""Runs of one checkpoint under the real scheduler that differ in what is switched on.

A calm run computes each request alone, in one piece and without a cache. Every other run must give
the same tokens and, bit for bit, the same scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, assert_no_leak

AMPLE = 600
"""Blocks that nobody ever lacks."""
NGRAM = NgramSettings(min_match_tokens=1)


@dataclass(frozen=True, slots=True)
class Feature:
    """How a run differs from the calm one."""

    settings: SchedulerSettings
    num_blocks: int = AMPLE
    swap_bytes: int = 0
    at_once: int = 1 << 30
    """Requests that are there together; by itself all."""
    least_at_once: int = 0
    """So many have to meet in one step."""


def limit(batch: int, chunk: int, running: int = 64, **fields: object) -> SchedulerSettings:
    """Settings without a cache unless `fields` say so."""
    return SchedulerSettings(
        max_batch_tokens=batch,
        max_chunk_tokens=chunk,
        max_running=running,
        **({"prefix_caching": False} | fields),  # type: ignore[arg-type]
    )


CALM = Feature(limit(2048, 2048), at_once=1)


def run(
    folder: Path, dtype: DtypeChoice, requests: Sequence[AddSequence], feature: Feature
) -> EngineRig:
    """All requests through a real model under the real scheduler."""
    executor = create_executor(
        WorkerSettings(
            model_dir=folder,
            dtype=dtype,
            num_blocks=feature.num_blocks,
            swap_bytes=feature.swap_bytes,
            num_threads=1,
            native_kernels=True,
            adapter_bytes=4 << 20,
            max_adapter_rank=16,
        )
    )
    rig = EngineRig(feature.settings, executor.info, loader=executor)
    rig.executor = executor  # type: ignore[assignment]
    for first in range(0, len(requests), feature.at_once):
        for request in requests[first : first + feature.at_once]:
            rig.add(request)
        rig.run()
    assert_no_leak(rig)
    executor.close()
    return rig


def list_differences(rig: EngineRig, calm: EngineRig) -> list[int]:
    """Requests of `rig` whose tokens or scores are not, bit for bit, those of the calm run."""
    return [number for number in rig.outcomes if _encode(rig, number) != _encode(calm, number)]


def _encode(rig: EngineRig, number: int) -> bytes:
    """All that a request has brought."""
    outcome = rig.outcomes[number]
    return msgspec.json.encode((outcome.token_ids, outcome.scores, outcome.prompt_scores))


def find_largest_piece(rig: EngineRig) -> int:
    """Most tokens of one sequence in one step."""
    return max(work.num_tokens for plan in rig.plans for work in plan.scheduled)


def find_largest_batch(rig: EngineRig) -> int:
    """Most sequences in one step."""
    return max(len(plan.scheduled) for plan in rig.plans)


def assert_has_happened(feature: Feature, rig: EngineRig) -> None:
    """The control: the feature did something in this run."""
    assert find_largest_piece(rig) <= feature.settings.max_batch_tokens, "chunks"
    num_begun = sum(len(plan.new) for plan in rig.plans)
    assert (num_begun > len(rig.outcomes)) == (feature.num_blocks < AMPLE), "preemption"
    assert any(plan.moved_in for plan in rig.plans) == (feature.swap_bytes > 0), "swap"
    drafts = [w.draft_token_ids for plan in rig.plans for w in plan.scheduled]
    assert any(drafts) == (feature.settings.ngram is not None), "guesses"
    cached = [max(outcome.num_cached_tokens) for outcome in rig.outcomes.values()]
    assert (max(cached) > 0) == feature.settings.prefix_caching, "cache"
    largest = find_largest_batch(rig)
    assert (largest > 1) == (feature.at_once > 1), "batch"
    assert largest >= feature.least_at_once, "as large a batch as was meant"
