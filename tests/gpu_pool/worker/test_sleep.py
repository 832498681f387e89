"""A loaded model sleeps and wakes: its memory goes and comes, its answers stay bit by bit."""

from pathlib import Path

import pytest
import torch

from contracts.encoding import Pooling
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.plan import EncodePlan
from gpu_pool.weights.config import read_config
from gpu_pool.weights.tensor_search import find_tensors
from gpu_pool.worker.encoder_worker import create_encoder_executor
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.model_memory import CpuPlaces
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.fixtures.encoder_checkpoint import write_encoder_checkpoint
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama
from tests.gpu_pool.weights.resident import read_resident_bytes

PROMPTS = [[1 + i % 200 for i in range(length)] for length in (3, 40)]
WIDE = {"hidden_size": 512, "intermediate_size": 2048}
"""Some 40 MB in fp32, which shows in the memory of a process."""


def create(folder: Path, **changes: object) -> PlanDriver:
    fields = {"model_dir": folder, "num_threads": 1, "num_blocks": 200} | changes
    return PlanDriver(create_executor(WorkerSettings(**fields)))  # type: ignore[arg-type]


def generate(driver: PlanDriver) -> list[list[int]]:
    added = [driver.add(prompt) for prompt in PROMPTS]
    outputs = driver.generate(added, 8)
    for sequence_id in added:
        driver.release(sequence_id)
    return outputs


@pytest.mark.parametrize("dtype", [DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def test_memory_falls_and_the_same_tokens_come_again(tmp_path: Path, dtype: DtypeChoice) -> None:
    write_tiny_llama(tmp_path, **WIDE)
    driver = create(tmp_path, dtype=dtype)
    expected = generate(driver)
    info = driver.executor.info
    before = read_resident_bytes()
    given = driver.executor.sleep()
    assert given > 0.95 * (info.weights_bytes + info.kv_bytes)
    fallen = before - read_resident_bytes()
    assert fallen > 0.9 * info.weights_bytes
    assert driver.executor.wake() == given
    assert generate(driver) == expected
    driver.executor.close()


def test_no_weight_of_a_model_is_overlooked(tmp_path: Path) -> None:
    """A family keeps its weights as it likes, packed or not."""
    write_tiny_llama(tmp_path)
    checked = read_config(tmp_path)
    loader = ModelLoader(tmp_path, None, torch.float32)
    model = loader.load_causal(checked.network, 64, CpuPlaces().join)  # type: ignore[arg-type]
    num_parameters = sum(
        tensor.numel() for tensor in find_tensors(model) if tensor.is_mkldnn or tensor.dim() < 3
    )
    stored = loader.measure_bytes(checked.network) // 4
    assert stored <= num_parameters < 1.2 * stored  # rotary tables are there besides


def test_a_hundred_cycles_leave_memory_flat(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    driver = create(tmp_path)
    expected = generate(driver)
    sizes: list[int] = []
    for cycle in range(100):
        driver.executor.sleep()
        driver.executor.wake()
        if cycle % 10 == 9:
            assert generate(driver) == expected
            sizes.append(read_resident_bytes())
    assert max(sizes[1:]) - sizes[1] < 1 << 20


def test_an_encoder_sleeps_and_encodes_as_before(tmp_path: Path) -> None:
    write_encoder_checkpoint(tmp_path, "BertModel")
    checked = read_config(tmp_path)
    settings = WorkerSettings(model_dir=tmp_path, num_threads=1)
    executor = create_encoder_executor(settings, checked, checked.network)  # type: ignore[arg-type]
    plan = EncodePlan(((5, 9, 6), (5, 9, 7, 6)), (0, 0), (Pooling.MEAN, Pooling.MEAN))
    expected = executor.encode(plan)
    given = executor.sleep()
    assert given > 0.5 * executor.info.weights_bytes  # many of its tensors are less than a page
    assert executor.wake() == given
    assert executor.encode(plan) == expected
