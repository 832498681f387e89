"""Families with windows, chunks and latents under the real scheduler: answers stay.

Windowed groups give blocks back while their sequences go on, prefixes are found again, sequences
are preempted: none of it may change an answer.
"""

from pathlib import Path
from typing import Any

import pytest

from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.gemma.test_model import GEMMA3
from tests.gpu_pool.models.gpt_oss.test_model import GPT_OSS
from tests.gpu_pool.models.llama4.test_model import LLAMA4

pytestmark = pytest.mark.slow

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "windows": ("gemma3_text", GEMMA3),
    "windows and sinks": ("gpt_oss", GPT_OSS),
    "chunks": ("llama4_text", LLAMA4),
    "latents": ("deepseek_v3", V3),
    "windows only": ("mistral", {"sliding_window": 40}),
}
NUM_REQUESTS = 12
NUM_TOKENS = 24


def create_requests() -> list[AddSequence]:
    """Half share a prefix that is longer than every window."""
    prefix = create_prompt(120, 99)
    return [
        create_request(
            i, (prefix if i % 2 else []) + create_prompt(10 + 9 * i, i), max_tokens=NUM_TOKENS
        )
        for i in range(NUM_REQUESTS)
    ]


def create_rig(folder: Path, settings: SchedulerSettings, num_blocks: int) -> EngineRig:
    """A rig whose plans a real model carries out."""
    executor = create_executor(
        WorkerSettings(model_dir=folder, num_blocks=num_blocks, num_threads=1)
    )
    rig = EngineRig(settings, executor.info)
    rig.executor = executor  # type: ignore[assignment]
    return rig


@pytest.mark.parametrize("family", FAMILIES)
def test_crowding_preemption_and_caching_change_no_answer(family: str, tmp_path: Path) -> None:
    model_type, changes = FAMILIES[family]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    requests = create_requests()
    calm = create_rig(folder, SchedulerSettings(prefix_caching=False), 400)
    for request in requests:
        calm.add(request)
        calm.run()
    crowded = create_rig(folder, SchedulerSettings(max_batch_tokens=96, max_chunk_tokens=37), 18)
    for request in requests:
        crowded.add(request)
    crowded.run()
    for i in range(NUM_REQUESTS):
        assert len(calm.outcomes[i].token_ids) == NUM_TOKENS
        assert crowded.outcomes[i].token_ids == calm.outcomes[i].token_ids, i
    assert any(max(outcome.num_cached_tokens) > 0 for outcome in crowded.outcomes.values())
    if family != "windows only":  # a window alone needs few blocks
        assert sum(len(plan.new) for plan in crowded.plans) > NUM_REQUESTS  # some were preempted
