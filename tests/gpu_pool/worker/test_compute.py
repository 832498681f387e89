"""Which of the native kernels a worker computes with."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from gpu_pool.compute_choice import CpuLevel, DtypeChoice
from gpu_pool.kernels.cpu.levels import LEVELS
from gpu_pool.worker import compute
from gpu_pool.worker.compute import choose_num_threads, find_kernels
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.fixtures.one_cpu import needs_cpus, one_cpu
from tests.gpu_pool.kernels.cpu.native_levels import NAMES
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama

__all__ = ["one_cpu"]
CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(not NAMES, reason="native kernels are for x86-64 Linux")


def test_every_level_can_be_chosen_by_its_name() -> None:
    assert [level.name for level in LEVELS] == [level for level in CpuLevel if level != "auto"]


@needs_cpus
@pytest.mark.usefixtures("one_cpu")
def test_a_model_computes_with_the_cpus_that_its_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "_SMALL_MODEL_BYTES", 0)
    write_tiny_llama(tmp_path)
    settings = WorkerSettings(model_dir=tmp_path)
    assert choose_num_threads(settings) == 1
    assert choose_num_threads(replace(settings, num_default_threads=3)) == 3


@needs_kernels
def test_the_best_level_that_the_cpu_has_up_to_the_chosen_one() -> None:
    for chosen in CpuLevel:
        kernels = find_kernels(CPU, torch.bfloat16, chosen)
        assert kernels is not None
        above = [level.name for level in LEVELS]
        above = above[: above.index(chosen)] if chosen != "auto" else []
        assert kernels.level.name == next(name for name in NAMES if name not in above)
        assert find_kernels(CPU, torch.float32, chosen) is None
        assert find_kernels(torch.device("cuda"), torch.bfloat16, chosen) is None


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_model_computes_at_the_chosen_level(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)
    settings = WorkerSettings(
        model_dir=tmp_path,
        dtype=DtypeChoice.BFLOAT16,
        num_threads=1,
        num_blocks=20,
        cpu_level=CpuLevel(name),
    )
    found: list[str] = []

    def note(*arguments: object) -> object:
        kernels = find_kernels(*arguments)  # type: ignore[arg-type]
        assert kernels is not None
        found.append(kernels.level.name)
        return kernels

    monkeypatch.setattr("gpu_pool.worker.worker.find_kernels", note)
    driver = PlanDriver(create_executor(settings))
    (output,) = driver.generate([driver.add([5, 6, 7])], 4)
    assert found == [name]
    assert len(output) == 4
