"""Qwen2, Qwen3 and Qwen3 with experts against transformers, and mutants of each."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu_pool.models.family_check import MAX_ERROR, measure_error, measure_roundings
from tests.gpu_pool.models.family_checkpoint import (
    Reference,
    copy_checkpoint,
    write_checkpoint,
)

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
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
MUTATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "theta": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
    "window": ("qwen2 windows", {"sliding_window": 39}),
    "no window": ("qwen2 windows", {"use_sliding_window": False}),
    "windows in all layers": (
        "qwen3 windows",
        {"layer_types": ["sliding_attention"] * 3},
    ),
    "fewer experts": ("experts", {"num_experts_per_tok": 2}),
    "weights as they are": ("experts", {"norm_topk_prob": False}),
}


def write_variant(folder: Path, variant: str, seed: int = 0) -> Path:
    """A checkpoint of a variant."""
    model_type, changes = VARIANTS[variant]
    return write_checkpoint(folder, model_type, seed=seed, **changes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    folder = write_variant(tmp_path, variant)
    assert measure_error(folder, Reference(folder)) <= MAX_ERROR


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, changes = MUTATIONS[mutation]
    folder = write_variant(tmp_path / "right", variant)
    mutant = copy_checkpoint(folder, tmp_path / "wrong", **changes)
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


@pytest.mark.parametrize(
    ("variant", "tensor"),
    [("experts", "mlp.gate.weight"), ("qwen3", "q_norm.weight"), ("qwen2", "k_proj.bias")],
)
def test_a_mutated_tensor_is_found(variant: str, tensor: str, tmp_path: Path) -> None:
    folder = write_variant(tmp_path / "right", variant)
    rolled = {tensor: lambda weight: weight.roll(1, 0)}
    mutant = copy_checkpoint(folder, tmp_path / "wrong", tensors=rolled)
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "experts"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    def write(folder: Path, seed: int) -> Path:
        return write_variant(folder, variant, seed)

    roundings = measure_roundings(write, tmp_path)
    assert 0 < min(roundings.values()) <= max(roundings.values()) <= 1.1, roundings
