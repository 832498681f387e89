"""Files that are refused, each in words that name what is wrong, and nothing else suffers."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.adapters import MAX_ADAPTER_BYTES
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.lora.adapter_files import (
    create_tensors,
    describe,
    load,
    write_adapter,
    write_tensors,
)
from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.qwen.test_model import EXPERTS
from tests.gpu_pool.plan_driver import PlanDriver

MODULE = "model.layers.0.self_attn.q_proj"
SHAPES = {MODULE: (64, 64)}
STEM = f"base_model.model.{MODULE}"
A, B = f"{STEM}.lora_A.weight", f"{STEM}.lora_B.weight"

Tensors = dict[str, Tensor]


def create_driver(folder: Path) -> PlanDriver:
    settings = WorkerSettings(
        model_dir=folder,
        dtype=DtypeChoice.FLOAT32,
        num_blocks=64,
        num_threads=1,
        adapter_bytes=1 << 20,
        max_adapter_rank=16,
    )
    return PlanDriver(create_executor(settings))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def driver(checkpoint: Path) -> PlanDriver:
    return create_driver(checkpoint)


def changed(change: Callable[[Tensors], Any], rank: int = 4) -> Tensors:
    tensors = create_tensors(SHAPES, rank)
    change(tensors)
    return tensors


def rename(old: str, new: str) -> Tensors:
    tensors = create_tensors(SHAPES)
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def spoil(name: str, value: float) -> Tensors:
    def change(tensors: Tensors) -> None:
        tensors[name][-1, -1] = value

    return changed(change)


REFUSED: dict[str, tuple[Tensors, str]] = {
    "an unknown module": (rename("q_proj", "x_proj"), "self_attn.x_proj` is no part of this model"),
    "another layer": (rename("layers.0", "layers.9"), "layers.9.self_attn.q_proj` is no part"),
    "no module's name": (rename("base_model.model.", ""), "is not the name of an adapter's matrix"),
    "half a pair": (changed(lambda t: t.pop(B)), f"`{MODULE}` has no lora_B"),
    "the other half": (changed(lambda t: t.pop(A)), f"`{MODULE}` has no lora_A"),
    "ranks that differ": (changed(lambda t: t.update({A: torch.ones(5, 64)})), "rank 5 in lora_A"),
    "another shape": (changed(lambda t: t.update({A: torch.ones(4, 32)})), "has shape [64, 64]"),
    "a high rank": (create_tensors(SHAPES, 17), "has rank 17; this node takes ranks up to 16"),
    "one dimension": (changed(lambda t: t.update({A: torch.ones(64)})), "is no matrix"),
    "nothing": ({}, "has no tensors"),
    "no rows": (changed(lambda t: t.update({A: torch.ones(0, 64)})), "is no matrix"),
    "whole numbers": (changed(lambda t: t.update({A: t[A].int()})), "only bf16, fp16 and fp32"),
    "fp64": (changed(lambda t: t.update({A: t[A].double()})), "only bf16, fp16 and fp32"),
    "NaN": (spoil(A, float("nan")), "holds what is no number"),
    "infinity": (spoil(B, float("inf")), "holds what is no number"),
    "what its scale makes infinite": (spoil(B, 3e38), "too large by its scale"),
    "DoRA": (create_tensors(SHAPES) | {f"{STEM}.lora_magnitude_vector": torch.ones(64)}, "DoRA"),
    "a bias": (create_tensors(SHAPES) | {f"{STEM}.bias": torch.ones(64)}, "is a bias"),
    "a whole module": (
        changed(lambda t: t.update({"base_model.model.lm_head.modules_to_save.weight": t[A]})),
        "replaces a whole module",
    ),
    "an embedding": (
        changed(lambda t: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": t[A]})),
        "changes an embedding",
    ),
    "the embedding's matrix": (
        rename("layers.0.self_attn.q_proj", "embed_tokens"),
        "the embedding",
    ),
    "the head": (rename(MODULE, "lm_head"), "`lm_head` is the head"),
    "a norm": (rename("self_attn.q_proj", "input_layernorm"), "no product that takes an adapter"),
    "two names for one": (
        changed(lambda t: t.update({n.replace("weight", "default.weight"): t[n] for n in (A, B)})),
        "is there twice",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name(what: str, driver: PlanDriver, tmp_path: Path) -> None:
    tensors, reason = REFUSED[what]
    scale = 4.0 if what == "what its scale makes infinite" else 0.5
    news = load(driver.executor, write_tensors(tmp_path / "a.safetensors", tensors, scale))
    assert reason in news.refused
    assert news.refused.startswith("The adapter cannot be used: ")
    assert str(tmp_path) not in news.refused
    assert not news.is_loaded


def test_what_they_are_changed_from_is_taken(driver: PlanDriver, tmp_path: Path) -> None:
    """The control, with each dtype and either way of naming."""
    for number, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16)):
        for infix in ("", ".default"):
            tensors = create_tensors(SHAPES, seed=number, dtype=dtype, infix=infix)
            adapter = write_tensors(tmp_path / f"{number}{infix}.safetensors", tensors)
            assert load(driver.executor, adapter).is_loaded
            driver.executor.drop_adapter(adapter.digest)


MOE = {"router": "mlp.gate", "a routed expert": "mlp.experts.3.gate_proj"}


@pytest.mark.parametrize("what", MOE)
def test_routers_and_experts_take_none(what: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "moe", "qwen3_moe", **EXPERTS)
    driver = create_driver(folder)
    adapter = write_adapter(tmp_path / "a.safetensors", folder, [MOE[what]])
    assert "take no adapter" in load(driver.executor, adapter).refused
    driver.executor.close()


def test_what_latent_attention_takes_into_its_queries_takes_none(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "latents", "deepseek_v3", **V3)
    driver = create_driver(folder)
    adapter = write_adapter(tmp_path / "a.safetensors", folder, ["kv_b_proj"])
    assert "latent attention takes into its queries" in load(driver.executor, adapter).refused
    driver.executor.close()


# -- hostile files -----------------------------------------------------------------------------


def header(fields: Any, length: int | None = None) -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


ENTRY = {"dtype": "F32", "shape": [4, 64], "data_offsets": [0, 1024]}
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "no safetensors": b"PK\3\4 a zip file is what torch.load reads",
    "a header longer than the file": header({A: ENTRY}, 1 << 40),
    "a huge header": header(b" " * (3 << 20)),
    "deep nesting": header(b"[" * 100_000),
    "no JSON": header(b"\xff\xfe"),
    "cut data": header({A: ENTRY}) + bytes(1000),
    "more data": header({A: ENTRY}) + bytes(1025),
    "offsets beyond": header({A: ENTRY | {"data_offsets": [1 << 50, (1 << 50) + 1024]}}),
    "a size that fits nothing": header({A: ENTRY | {"shape": [1 << 40, 1 << 40]}}),
    "negative sizes": header({A: ENTRY | {"shape": [-4, -64]}}) + bytes(1024),
    "overlaps": header({A: ENTRY, B: ENTRY}) + bytes(1024),
    "an endless name": header({"x" * 1_000_000: ENTRY}) + bytes(1024),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_fails_alone(what: str, driver: PlanDriver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(HOSTILE[what])
    news = load(driver.executor, describe(path))
    assert news.refused
    assert len(news.refused) < 500
    assert str(tmp_path) not in news.refused


def test_a_file_of_any_length_is_not_read(driver: PlanDriver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.touch()
    adapter = describe(path)
    with path.open("r+b") as file:
        file.truncate(MAX_ADAPTER_BYTES + 1)  # of which the drive keeps nothing
    assert "has more than" in load(driver.executor, adapter).refused


def test_a_file_that_is_gone_is_not_the_clients_fault(driver: PlanDriver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.touch()
    adapter = describe(path)
    path.unlink()
    news = load(driver.executor, adapter)
    assert news.failed == "The node has lost the adapter's file."
    assert not news.refused


def test_the_model_answers_as_before_behind_all_that(driver: PlanDriver, checkpoint: Path) -> None:
    fresh = create_driver(checkpoint)
    prompt = create_prompt(20, 3)
    answers = [one.generate([one.add(prompt)], 5) for one in (driver, fresh)]
    assert answers[0] == answers[1]
    fresh.executor.close()
    driver.executor.close()
