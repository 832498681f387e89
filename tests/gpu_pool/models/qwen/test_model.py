"""Qwen2, Qwen3 and Qwen3 with experts against transformers, and mutants of each."""

from pathlib import Path

import pytest

from tests.gpu_pool.models.family_check import (
    Mutation,
    Variant,
    check_logits,
    check_mutant,
    check_rounding,
)

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
VARIANTS: dict[str, Variant] = {
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 windows": ("qwen2", WINDOW),
    "qwen3": ("qwen3", {}),
    "qwen3 windows": ("qwen3", WINDOW),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "qwen3 yarn": ("qwen3", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen3 wide heads": ("qwen3", {"head_dim": 32}),
    "experts": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True}),
    "experts, weights as they are": ("qwen3_moe", EXPERTS | {"norm_topk_prob": False}),
    "experts in some layers": (
        "qwen3_moe",
        EXPERTS | {"decoder_sparse_step": 2, "num_hidden_layers": 4, "mlp_only_layers": [3]},
    ),
}
MUTATIONS: dict[str, Mutation] = {
    "theta": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
    "theta of qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
    "theta of experts": (
        "experts",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}},
    ),
    "window": ("qwen2 windows", {"sliding_window": 39}),
    "window of qwen3": ("qwen3 windows", {"sliding_window": 41}),
    "no window": ("qwen2 windows", {"use_sliding_window": False}),
    "windows in all layers": (
        "qwen3 windows",
        {"layer_types": ["sliding_attention"] * 3},
    ),
    "fewer experts": ("experts", {"num_experts_per_tok": 2}),
    "weights as they are": ("experts", {"norm_topk_prob": False}),
    "router": ("experts", "mlp.gate.weight"),
    "norms of heads": ("qwen3", "q_norm.weight"),
    "biases": ("qwen2", "k_proj.bias"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    check_logits(tmp_path, VARIANTS[variant])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, wrong = MUTATIONS[mutation]
    check_mutant(tmp_path, VARIANTS[variant], wrong)


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "experts"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    check_rounding(tmp_path, VARIANTS[variant])
