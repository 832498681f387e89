"""Llama against transformers: fp32 logits every way, bf16 rounding, mutations that must fail."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu_pool.models.family_check import MAX_ERROR, measure_error, measure_roundings
from tests.gpu_pool.models.family_checkpoint import (
    Reference,
    copy_checkpoint,
    write_checkpoint,
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
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "tied embeddings": {"tie_word_embeddings": True},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": LINEAR},
    "yarn rope": {"rope_parameters": YARN},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one query head per KV head": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 24},
}
MUTATIONS: dict[str, dict[str, Any]] = {
    "theta": {"rope_parameters": LLAMA3 | {"rope_theta": 400_000.0}},
    "factor": {"rope_parameters": LLAMA3 | {"factor": 4.0}},
    "no scaling": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "epsilon": {"rms_norm_eps": 1e-2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama", **VARIANTS[variant])
    assert measure_error(folder, Reference(folder)) <= MAX_ERROR


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "right", "llama", rope_parameters=LLAMA3)
    mutant = copy_checkpoint(folder, tmp_path / "wrong", **MUTATIONS[mutation])
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


def test_bfloat16_rounds_no_worse_than_transformers(tmp_path: Path) -> None:
    def write(folder: Path, seed: int) -> Path:
        return write_checkpoint(folder, "llama", seed=seed, rope_parameters=LLAMA3)

    roundings = measure_roundings(write, tmp_path)
    assert 0 < min(roundings.values()) <= max(roundings.values()) <= 1.1, roundings
