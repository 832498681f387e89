"""KV in eight bits, from settings to logits: about half of the memory, answers that are near."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from gpu_pool.compute_choice import KvDtypeChoice
from gpu_pool.kv.tiers.host_blocks import digest_layout as digest_tiers
from gpu_pool.model_store import BUNDLED_PATH
from gpu_pool.transfer.exchange import digest_layout
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.models.deepseek.test_model import VARIANTS
from tests.gpu_pool.models.family_check import Seen, drive_every_way, record_logits
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama


def settings_for(folder: Path, **changes: object) -> WorkerSettings:
    """Eight bits and fp32 unless told otherwise."""
    fields = {
        "model_dir": folder,
        "dtype": DtypeChoice.FLOAT32,
        "kv_dtype": KvDtypeChoice.FP8_E4M3,
        "num_threads": 1,
        "num_blocks": 160,
    }
    return WorkerSettings(**(fields | changes))  # type: ignore[arg-type]


def write_latent(folder: Path) -> None:
    """A small DeepSeek, whose attention is less peaked than where logits are to be exact."""
    model_type, changes = VARIANTS["v3"]
    write_checkpoint(folder, model_type, **(changes | {"sharpness": 2.0}))


def write_windowed(folder: Path) -> None:
    """Layers with windows and soft caps beside full ones."""
    write_checkpoint(folder, "gemma2", sliding_window=48, query_pre_attn_scalar=16)


def test_others_are_told_what_blocks_are_made_of(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    executors = {
        choice: create_executor(settings_for(tmp_path, kv_dtype=choice, num_blocks=8))
        for choice in KvDtypeChoice
    }
    whole, eight = (executors[choice].info for choice in ("auto", "fp8_e4m3"))
    assert (whole.kv_dtype, eight.kv_dtype) == ("float32", "fp8_e4m3")
    tokens = 3 * 16  # layers times tokens of a block; 2 KV heads of 16, keys and values
    assert whole.kv_groups[0].block_bytes == tokens * 2 * 2 * 16 * 4
    assert eight.kv_groups[0].block_bytes == tokens * (2 * 2 * 16 + 2 * 2 * 4)
    assert digest_layout(whole) != digest_layout(eight)
    assert digest_tiers(whole) != digest_tiers(eight)


def test_native_kernels_leave_eight_bits_to_torch(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    executor = create_executor(
        settings_for(tmp_path, dtype=DtypeChoice.BFLOAT16, native_kernels=True)
    )
    driver = PlanDriver(executor)
    assert len(driver.generate([driver.add([1, 2, 3])], 4)[0]) == 4


@pytest.mark.parametrize("write_model", [write_tiny_llama, write_latent, write_windowed])
def test_every_way_to_a_token_gives_the_same_and_logits_are_near(
    write_model: Callable[[Path], object], tmp_path: Path
) -> None:
    write_model(tmp_path)
    seen: dict[str, list[Seen]] = {}
    for choice in KvDtypeChoice:
        driver = PlanDriver(create_executor(settings_for(tmp_path, kv_dtype=choice)))
        seen[choice] = record_logits(driver)
        drive_every_way(driver)
    whole, eight = (seen[choice][0].logits for choice in ("auto", "fp8_e4m3"))
    lost = ((eight - whole).norm() / whole.norm()).item()
    # Random weights, queries and keys made long on purpose: the worst that rounding meets.
    assert 1e-4 < lost < 0.3
    assert (eight.argmax(-1) == whole.argmax(-1)).float().mean() > 0.7


def test_the_demo_model_says_nearly_what_it_said() -> None:
    token_ids = [(index * 37) % 400 + 20 for index in range(256)]
    logits: list[Tensor] = []
    for choice in KvDtypeChoice:
        executor = create_executor(settings_for(BUNDLED_PATH, kv_dtype=choice, num_blocks=32))
        driver = PlanDriver(executor)
        seen = record_logits(driver)
        driver.generate([driver.add(token_ids)], 2)
        logits.append(seen[0].logits)
    whole, eight = logits
    assert 1e-4 < ((eight - whole).norm() / whole.norm()).item() < 0.15
