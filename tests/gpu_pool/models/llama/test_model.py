"""Llama against transformers: fp32 logits every way, bf16 rounding, mutations that must fail."""

from pathlib import Path

import pytest

from tests.gpu_pool.models.family_check import (
    Mutation,
    Variant,
    check_logits,
    check_mutant,
    check_rounding,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
UNSCALED = {"rope_type": "default", "rope_theta": 500_000.0}
VARIANTS: dict[str, Variant] = {
    "grouped heads": ("llama", {}),
    "tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "linear rope": ("llama", {"rope_parameters": LINEAR}),
    "yarn rope": ("llama", {"rope_parameters": YARN}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one query head per KV head": ("llama", {"num_key_value_heads": 4}),
    "wide heads": ("llama", {"head_dim": 24}),
}
MUTATIONS: dict[str, Mutation] = {
    "theta": ("llama3 rope", {"rope_parameters": LLAMA3 | {"rope_theta": 400_000.0}}),
    "factor": ("llama3 rope", {"rope_parameters": LLAMA3 | {"factor": 4.0}}),
    "no scaling": ("llama3 rope", {"rope_parameters": UNSCALED}),
    "epsilon": ("llama3 rope", {"rms_norm_eps": 1e-2}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    check_logits(tmp_path, VARIANTS[variant])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, wrong = MUTATIONS[mutation]
    check_mutant(tmp_path, VARIANTS[variant], wrong)


@pytest.mark.parametrize("variant", ["llama3 rope"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    check_rounding(tmp_path, VARIANTS[variant])
