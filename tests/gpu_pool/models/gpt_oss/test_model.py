"""gpt-oss against transformers, and mutants."""

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

YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 128,
}
GPT_OSS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "sliding_window": 40,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "rope_parameters": YARN,
    "swiglu_limit": 2.0,
    "initializer_range": 0.1,
    "sharpness": 2.5,
}
VARIANTS: dict[str, Variant] = {
    "gpt-oss": ("gpt_oss", GPT_OSS),
    "wide window": ("gpt_oss", GPT_OSS | {"sliding_window": 530}),
    "no biases": ("gpt_oss", GPT_OSS | {"attention_bias": False}),
}
MUTATIONS: dict[str, Mutation] = {
    "window": ("gpt-oss", {"sliding_window": 39}),
    "other layers": ("gpt-oss", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
    "theta": ("gpt-oss", {"rope_parameters": YARN | {"rope_theta": 100_000.0}}),
    "range of the blend": ("gpt-oss", {"rope_parameters": YARN | {"truncate": True}}),
    "fewer experts": ("gpt-oss", {"num_experts_per_tok": 2}),
    "gate's limit": ("gpt-oss", {"swiglu_limit": 1.8}),
    "gate's slope": ("gpt-oss", {"swiglu_alpha": 1.5}),
    "gate's biases": ("gpt-oss", "gate_up_proj_bias"),
    "sinks": ("gpt-oss", "sinks"),
    "router": ("gpt-oss", "router.weight"),
    "router's biases": ("gpt-oss", "router.bias"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    check_logits(tmp_path, VARIANTS[variant])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, wrong = MUTATIONS[mutation]
    check_mutant(tmp_path, VARIANTS[variant], wrong)


@pytest.mark.parametrize("variant", ["gpt-oss"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    check_rounding(tmp_path, VARIANTS[variant])
