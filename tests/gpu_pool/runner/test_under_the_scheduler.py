"""The real executor under the real scheduler: crowded, preempted and cached, answers stay."""

from pathlib import Path

import torch

from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.tiny_llama import write_tiny_llama

NUM_REQUESTS = 24


def create_rig(folder: Path, scheduler: SchedulerSettings, num_blocks: int) -> EngineRig:
    """A rig whose plans a real model carries out."""
    executor = create_executor(
        WorkerSettings(model_dir=folder, num_blocks=num_blocks, num_threads=1)
    )
    rig = EngineRig(scheduler, executor.info)
    rig.executor = executor  # type: ignore[assignment]
    return rig


def create_requests() -> list[AddSequence]:
    """Half share a long prefix, half draw by a seed."""
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(0, 300, (50,), generator=generator).tolist()
    requests: list[AddSequence] = []
    for i in range(NUM_REQUESTS):
        length = int(torch.randint(1, 60, (1,), generator=generator))
        own = torch.randint(0, 300, (length,), generator=generator).tolist()
        prompt = prefix + own if i % 2 else own
        temperature = 1.0 if i % 4 < 2 else 0.0
        requests.append(create_request(i, prompt, max_tokens=30, temperature=temperature, seed=i))
    return requests


def test_crowding_preemption_and_caching_change_no_answer(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    requests = create_requests()
    calm = create_rig(tmp_path, SchedulerSettings(prefix_caching=False), 400)
    for request in requests:
        calm.add(request)
        calm.run()
    crowded = create_rig(tmp_path, SchedulerSettings(max_batch_tokens=64, max_chunk_tokens=23), 40)
    for request in requests:
        crowded.add(request)
    crowded.run()
    for i in range(NUM_REQUESTS):
        assert len(calm.outcomes[i].token_ids) == 30
        assert crowded.outcomes[i].token_ids == calm.outcomes[i].token_ids
    num_begun = sum(len(plan.new) for plan in crowded.plans)
    assert num_begun > NUM_REQUESTS  # some were preempted and begun again
    assert any(max(outcome.num_cached_tokens) > 0 for outcome in crowded.outcomes.values())
