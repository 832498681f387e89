"""All layers in one native call: the bits of the same layers one by one, and who is not joined."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_pool.kernels.cpu.calls import AttentionCall, RotationCall, StepCall
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.models.native_passage import NativePassage
from gpu_pool.worker.settings import CpuLevel, DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.kernels.cpu.native_levels import NAMES, at_every_level, one_thread
from tests.gpu_pool.models.family_check import Seen, drive_every_way, record_logits
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.plan_driver import PlanDriver

__all__ = ["one_thread"]  # an executor sets the process's threads: they are put back
WIDE = {"head_dim": 32, "hidden_size": 72, "intermediate_size": 104}
WINDOWS = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}
JOINED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", WIDE),
    "biases everywhere": ("llama", WIDE | {"attention_bias": True, "mlp_bias": True}),
    "two KV groups": ("qwen2", WIDE | WINDOWS),
    "norms of heads": ("qwen3", WIDE | {"attention_bias": True}),
    "windows alone": ("mistral", WIDE | {"sliding_window": 24}),
}
APART: dict[str, tuple[str, dict[str, Any]]] = {
    "heads whose halves are no vectors": ("llama", WIDE | {"head_dim": 16}),
    "experts": ("mixtral", WIDE | {"num_local_experts": 4}),
}


def create_driver(folder: Path, level: str, num_threads: int) -> PlanDriver:
    settings = WorkerSettings(
        model_dir=folder,
        dtype=DtypeChoice.BFLOAT16,
        num_blocks=160,
        num_threads=num_threads,
        cpu_level=CpuLevel(level),
    )
    return PlanDriver(create_executor(settings))


def find_model(driver: PlanDriver) -> Any:
    lane: Any = driver.executor._runner._lane  # type: ignore[attr-defined]
    return lane._model


def see_all(driver: PlanDriver) -> list[Seen]:
    seen = record_logits(driver)
    drive_every_way(driver)
    driver.executor.close()
    return seen


@at_every_level
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("variant", JOINED)
def test_bits_are_those_of_the_layers_one_by_one(
    variant: str,
    num_threads: int,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model_type, changes = JOINED[variant]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    whole = create_driver(folder, level, num_threads)
    assert isinstance(find_model(whole)._native, NativePassage)
    num_runs = 0
    run = NativeKernels.run_layers

    def count(*told: Any) -> None:
        nonlocal num_runs
        num_runs += 1
        run(*told)

    monkeypatch.setattr(NativeKernels, "run_layers", count)
    joined = see_all(whole)
    assert num_runs > 10
    apart = create_driver(folder, level, 1)
    find_model(apart)._native = None
    num_joined = num_runs
    for one, other in zip(joined, see_all(apart), strict=True):
        assert one.token_ids == other.token_ids
        assert torch.equal(one.logits, other.logits)
    assert num_runs == num_joined  # else both went the same way


@pytest.mark.skipif(not NAMES, reason="native kernels are for x86-64 Linux")
@pytest.mark.parametrize("variant", APART)
def test_what_the_call_does_not_compute_is_not_joined(variant: str, tmp_path: Path) -> None:
    model_type, changes = APART[variant]
    driver = create_driver(write_checkpoint(tmp_path, model_type, **changes), NAMES[0], 1)
    assert find_model(driver)._native is None
    driver.executor.close()


@pytest.mark.skipif(not NAMES, reason="native kernels are for x86-64 Linux")
def test_a_passage_that_is_waited_for_goes_layer_by_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = create_driver(write_checkpoint(tmp_path, "llama", **WIDE), NAMES[0], 1)
    model = find_model(driver)
    expected = driver.generate([driver.add([5, 6, 7])], 4)
    model.passage = list(model.passage)  # as for the first step after a wake
    monkeypatch.setattr(NativeKernels, "run_layers", None)  # whoever calls it fails
    assert driver.generate([driver.add([5, 6, 7])], 4) == expected
    driver.executor.close()


@at_every_level
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_step_of_no_tokens_touches_nothing(num_threads: int, level: str, tmp_path: Path) -> None:
    driver = create_driver(write_checkpoint(tmp_path, "llama", **WIDE), level, num_threads)
    native = find_model(driver)._native
    starts = ctypes.c_int32(0)
    groups = (AttentionCall * 1)(AttentionCall(starts=ctypes.addressof(starts), num_heads=1))
    rotations = (RotationCall * 1)()
    call = StepCall(groups=ctypes.addressof(groups), rotations=ctypes.addressof(rotations))
    assert native._kernels.measure_layers(native._layers, 0) == 0
    native._kernels.run_layers(native._layers, call)  # whose addresses lead nowhere
    driver.executor.close()
