"""Llama 4's text model against transformers, and mutants."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu_pool.models.family_check import MAX_ERROR, measure_error, measure_roundings
from tests.gpu_pool.models.family_checkpoint import (
    Reference,
    copy_checkpoint,
    write_checkpoint,
)

LLAMA4: dict[str, Any] = {
    "head_dim": 64,
    "num_hidden_layers": 4,
    "attention_chunk_size": 48,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "floor_scale": 64,
    "attn_scale": 0.3,
    "initializer_range": 0.1,
    "sharpness": 2.5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.5,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "chunks and layers without positions": {},
    "dense layers between": {"interleave_moe_layer_step": 2, "use_qk_norm": False},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "two experts": {"num_experts_per_tok": 2},
    "wide chunks": {"attention_chunk_size": 520, "head_dim": 256},
    "no sharpening": {"attn_temperature_tuning": False},
}
MUTATIONS: dict[str, dict[str, Any]] = {
    "chunk": {"attention_chunk_size": 47},
    "no chunks": {"layer_types": ["full_attention"] * 4},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 400_000.0}},
    "positions everywhere": {"no_rope_layers": [1, 1, 1, 1]},
    "sharpening": {"attn_scale": 0.25},
    "where sharpening begins": {"floor_scale": 60},
    "heads not normed": {"use_qk_norm": False},
    "more experts": {"num_experts_per_tok": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama4_text", **(LLAMA4 | VARIANTS[variant]))
    assert measure_error(folder, Reference(folder)) <= MAX_ERROR


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "right", "llama4_text", **LLAMA4)
    mutant = copy_checkpoint(folder, tmp_path / "wrong", **MUTATIONS[mutation])
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


def test_a_mutated_router_is_found(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "right", "llama4_text", **LLAMA4)
    rolled = {"router.weight": lambda weight: weight.roll(1, 0)}
    mutant = copy_checkpoint(folder, tmp_path / "wrong", tensors=rolled)
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


def test_bfloat16_rounds_no_worse_than_transformers(tmp_path: Path) -> None:
    def write(folder: Path, seed: int) -> Path:
        return write_checkpoint(folder, "llama4_text", seed=seed, **LLAMA4)

    roundings = measure_roundings(write, tmp_path, num_checkpoints=12)
    assert 0 < min(roundings.values()) <= max(roundings.values()) <= 1.1, roundings
