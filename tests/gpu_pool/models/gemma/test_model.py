"""Gemma 2 and 3 against transformers, and mutants of each."""

from pathlib import Path

import pytest

from tests.gpu_pool.models.family_check import (
    Mutation,
    Variant,
    check_logits,
    check_mutant,
    check_rounding,
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
VARIANTS: dict[str, Variant] = {
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
MUTATIONS: dict[str, Mutation] = {
    "theta": ("gemma 2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1.2e4}}),
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
    "global theta": (
        "gemma 3",
        {
            "rope_parameters": ROPES
            | {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 8e5}}
        },
    ),
    "window of gemma 3": ("gemma 3", {"sliding_window": 39}),
    "pattern": (
        "gemma 3",
        {"layer_types": ["full_attention"] + ["sliding_attention"] * 5},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    check_logits(tmp_path, VARIANTS[variant])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, wrong = MUTATIONS[mutation]
    check_mutant(tmp_path, VARIANTS[variant], wrong)


@pytest.mark.parametrize("variant", ["gemma 2", "gemma 3"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    check_rounding(tmp_path, VARIANTS[variant])
