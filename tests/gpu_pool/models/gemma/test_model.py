"""Gemma 2 and 3 against transformers, and mutants of each."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu_pool.models.family_check import MAX_ERROR, measure_error, measure_roundings
from tests.gpu_pool.models.family_checkpoint import (
    Reference,
    copy_checkpoint,
    write_checkpoint,
)

GEMMA2 = {
    "num_hidden_layers": 4,
    "sliding_window": 40,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 30.0,
    "final_logit_softcapping": 4.0,
    "tie_word_embeddings": True,
}
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA3 = {
    "num_hidden_layers": 6,
    "sliding_window": 40,
    "query_pre_attn_scalar": 24,
    "rope_parameters": ROPES,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma 2": ("gemma2", GEMMA2),
    "gemma 2 without caps": (
        "gemma2",
        GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma 2 wide window": ("gemma2", GEMMA2 | {"sliding_window": 530}),
    "gemma 3": ("gemma3_text", GEMMA3),
    "gemma 3 wide heads": ("gemma3_text", GEMMA3 | {"head_dim": 32}),
    "gemma 3 capped logits": ("gemma3_text", GEMMA3 | {"final_logit_softcapping": 4.0}),
}
MUTATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("gemma 2", {"sliding_window": 39}),
    "all layers see everything": ("gemma 2", {"layer_types": ["full_attention"] * 4}),
    "score cap": ("gemma 2", {"attn_logit_softcapping": 35.0}),
    "logit cap": ("gemma 2", {"final_logit_softcapping": 4.5}),
    "scale": ("gemma 2", {"query_pre_attn_scalar": 25}),
    "local theta": (
        "gemma 3",
        {
            "rope_parameters": ROPES
            | {"sliding_attention": {"rope_type": "default", "rope_theta": 1.2e4}}
        },
    ),
    "global factor": (
        "gemma 3",
        {
            "rope_parameters": ROPES
            | {"full_attention": {"rope_type": "linear", "factor": 5.0, "rope_theta": 1e6}}
        },
    ),
    "pattern": (
        "gemma 3",
        {"layer_types": ["full_attention"] + ["sliding_attention"] * 5},
    ),
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


@pytest.mark.parametrize("variant", ["gemma 2", "gemma 3"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    def write(folder: Path, seed: int) -> Path:
        return write_variant(folder, variant, seed)

    roundings = measure_roundings(write, tmp_path)
    assert 0 < min(roundings.values()) <= max(roundings.values()) <= 1.1, roundings
