"""Weights of four bits that stay so: kept, models compute what their numbers stand for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_pool.models.native_passage import NativePassage
from gpu_pool.weights.packed_writing import MappedCopy, PackedWriting
from gpu_pool.weights.tensor_search import find_tensors
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.kernels.cpu.native_levels import NAMES, one_thread
from tests.gpu_pool.models.family_check import (
    MAX_ROUNDING,
    Seen,
    Variant,
    create_driver,
    drive_every_way,
    record_logits,
)
from tests.gpu_pool.models.family_checkpoint import Reference, copy_checkpoint, create_prompt
from tests.gpu_pool.models.packed_checkpoint import write_packed
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.weights.formats.packers import INT4_FORMATS

pytestmark = pytest.mark.skipif(not NAMES, reason="native kernels are for x86-64 Linux")
__all__ = ["one_thread"]  # an executor sets the process's threads: they are put back
PROMPTS = [create_prompt(100, seed) for seed in range(8)]
WIDE: Variant = ("llama", {"head_dim": 32, "num_attention_heads": 2})
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
VARIANTS: dict[str, tuple[str, Variant]] = {
    "biases": ("gptq of 4 bits", ("qwen2", {})),
    "biases and a tied head": ("awq", ("qwen2", {"tie_word_embeddings": True})),
    "norms of heads": ("int4 in groups with zeros", ("gemma3_text", {})),
    "experts": ("awq", ("qwen3_moe", EXPERTS | {"num_experts": 4})),
    "latents": (
        "int4 per channel",
        (
            "deepseek_v3",
            EXPERTS
            | {
                "n_routed_experts": 8,
                "n_group": 2,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "q_lora_rank": 32,
                "kv_lora_rank": 32,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 16,
                "v_head_dim": 16,
                "num_key_value_heads": 4,
            },
        ),
    ),
}


def find_model(driver: PlanDriver) -> Any:
    lane: Any = driver.executor._runner._lane  # type: ignore[attr-defined]
    return lane._model


def compute(folder: Path) -> tuple[list[Seen], Any]:
    """The logits of every prompt in bf16, and the model."""
    driver = create_driver(folder, DtypeChoice.BFLOAT16)
    seen = record_logits(driver)
    driver.generate([driver.add(prompt) for prompt in PROMPTS], 1)
    return seen, find_model(driver)


def measure(seen: list[Seen], exact: Reference) -> float:
    """The mean error over all prompts."""
    errors = [part.logits - exact.compute_logits(part.token_ids) for part in seen]
    return torch.cat(errors).abs().mean().item()


def count_kept(tensors: list[Tensor]) -> int:
    """Numbers of four bits, two a byte, factors and all."""
    return 2 * sum(tensor.numel() for tensor in tensors if tensor.dtype == torch.uint8)


def check(folder: Path, form: str, variant: Variant) -> None:
    """Our error is hardly above that of transformers with the numbers rounded to bf16."""
    packed, plain = write_packed(folder, form, variant)
    exact, rounded = Reference(plain), Reference(plain, torch.bfloat16)
    theirs = [
        Seen(prompt, 0, rounded.compute_logits(prompt).float()[: len(prompt)]) for prompt in PROMPTS
    ]
    seen, model = compute(packed)
    in_int4 = count_kept(find_tensors(model))
    assert in_int4 > sum(t.numel() for t in find_tensors(model) if t.dtype != torch.uint8)
    assert measure(seen, exact) <= MAX_ROUNDING * measure(theirs, exact)


@pytest.mark.parametrize("form", sorted(INT4_FORMATS))
def test_kept_numbers_compute_what_they_stand_for(form: str, tmp_path: Path) -> None:
    check(tmp_path, form, ("llama", {}))


@pytest.mark.parametrize("variant", VARIANTS)
def test_networks_of_every_kind_keep_theirs(variant: str, tmp_path: Path) -> None:
    check(tmp_path, *VARIANTS[variant])


def test_a_wrong_factor_shows(tmp_path: Path) -> None:
    packed, plain = write_packed(tmp_path, "awq", ("llama", {}))
    exact = Reference(plain)
    right, _ = compute(packed)
    rolled = {"down_proj.scales": lambda piece: piece.roll(1, 0)}
    wrong, _ = compute(copy_checkpoint(packed, tmp_path / "wrong", tensors=rolled))
    assert measure(wrong, exact) > 5 * measure(right, exact)


def test_what_is_in_full_precision_or_computed_by_torch_is_widened(tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, "awq", ("llama", {}))
    for driver in (
        create_driver(packed, DtypeChoice.FLOAT32),
        create_driver(packed, DtypeChoice.BFLOAT16, native_kernels=False),
    ):
        assert count_kept([t for t in find_tensors(find_model(driver)) if not t.is_mkldnn]) == 0


def test_one_call_a_step_has_the_bits_of_the_layers_one_by_one(tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, "awq", WIDE)
    seen: list[list[Seen]] = []
    for is_joined in (True, False):
        driver = create_driver(packed, DtypeChoice.BFLOAT16)
        model = find_model(driver)
        assert isinstance(model._native, NativePassage)
        model._native = model._native if is_joined else None
        seen.append(record_logits(driver))
        drive_every_way(driver)
    for one, other in zip(*seen, strict=True):
        assert one.token_ids == other.token_ids
        assert torch.equal(one.logits, other.logits)


def test_it_takes_a_third_of_the_memory_and_comes_back_from_a_sleep(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 128}
    packed, plain = write_packed(tmp_path, "awq", ("llama", sizes))
    kept, widened = (create_driver(folder, DtypeChoice.BFLOAT16) for folder in (packed, plain))
    weights_bytes = kept.executor.info.weights_bytes
    assert weights_bytes < 0.45 * widened.executor.info.weights_bytes  # embeddings are not packed
    prompt = create_prompt(50, 3, 100)
    expected = kept.generate([kept.add(prompt)], 8)
    num_bytes = kept.executor.sleep()
    assert num_bytes > 0.95 * weights_bytes
    assert kept.executor.wake() == num_bytes
    assert kept.generate([kept.add(prompt)], 8) == expected


COPIED: dict[str, tuple[str, Variant]] = {"nothing else": ("awq", ("llama", {}))} | VARIANTS


@pytest.mark.parametrize("variant", COPIED)
def test_a_start_from_the_packed_copy_computes_the_same_bits(variant: str, tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, *COPIED[variant])
    settings = WorkerSettings(
        model_dir=packed,
        dtype=DtypeChoice.BFLOAT16,
        num_blocks=80,
        num_threads=1,
        packed_copy_bytes=0,
    )
    seen: list[list[Seen]] = []
    for kind in (PackedWriting, MappedCopy):
        driver = PlanDriver(create_executor(settings))
        executor: Any = driver.executor
        copy = executor._memory._copy
        assert isinstance(copy, kind)
        if isinstance(copy, PackedWriting):
            copy.wait()
        else:
            assert copy.span.num_bytes > 0
            kept = [t for t in find_tensors(find_model(driver)) if t.dtype == torch.uint8]
            assert kept
            end = copy.span.address + copy.span.num_bytes
            assert all(copy.span.address <= tensor.data_ptr() < end for tensor in kept)
        seen.append(record_logits(driver))
        driver.generate([driver.add(prompt) for prompt in PROMPTS], 3)
    for one, other in zip(*seen, strict=True):
        assert torch.equal(one.logits, other.logits)
