"""Llama 4's text model against transformers, and mutants."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu_pool.models.family_check import (
    Mutation,
    Variant,
    check_logits,
    check_mutant,
    check_rounding,
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
VARIANTS: dict[str, Variant] = {
    "llama 4": ("llama4_text", LLAMA4),
    "dense layers between": (
        "llama4_text",
        LLAMA4 | {"interleave_moe_layer_step": 2, "use_qk_norm": False},
    ),
    "llama3 rope": ("llama4_text", LLAMA4 | {"rope_parameters": LLAMA3}),
    "two experts": ("llama4_text", LLAMA4 | {"num_experts_per_tok": 2}),
    "wide chunks": ("llama4_text", LLAMA4 | {"attention_chunk_size": 520, "head_dim": 256}),
    "no sharpening": ("llama4_text", LLAMA4 | {"attn_temperature_tuning": False}),
}
MUTATIONS: dict[str, Mutation] = {
    "chunk": ("llama 4", {"attention_chunk_size": 47}),
    "no chunks": ("llama 4", {"layer_types": ["full_attention"] * 4}),
    "theta": (
        "llama 4",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 400_000.0}},
    ),
    "positions everywhere": ("llama 4", {"no_rope_layers": [1, 1, 1, 1]}),
    "sharpening": ("llama 4", {"attn_scale": 0.25}),
    "where sharpening begins": ("llama 4", {"floor_scale": 60}),
    "heads not normed": ("llama 4", {"use_qk_norm": False}),
    "more experts": ("llama 4", {"num_experts_per_tok": 2}),
    "router": ("llama 4", "router.weight"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    check_logits(tmp_path, VARIANTS[variant])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, wrong = MUTATIONS[mutation]
    check_mutant(tmp_path, VARIANTS[variant], wrong)


@pytest.mark.parametrize("variant", ["llama 4"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    check_rounding(tmp_path, VARIANTS[variant], num_checkpoints=12)
