"""DeepSeek-V2 and V3 against transformers, and mutants of each."""

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
    "rope_theta": 1e4,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 128,
}
UNBLENDED = YARN | {"beta_fast": 1.0}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "initializer_range": 0.1,
    "sharpness": 12.0,
}
V2 = LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5}
V3 = LATENT | {"norm_topk_prob": True, "routed_scaling_factor": 2.5}
VARIANTS: dict[str, Variant] = {
    "v2": ("deepseek_v2", V2),
    "v2 lite": ("deepseek_v2", V2 | {"topk_method": "greedy", "q_lora_rank": None}),
    "v2 yarn": ("deepseek_v2", V2 | {"rope_parameters": YARN}),
    "v3": ("deepseek_v3", V3),
    "v3 yarn": ("deepseek_v3", V3 | {"rope_parameters": YARN}),
    "v3 yarn without a blend": ("deepseek_v3", V3 | {"rope_parameters": UNBLENDED}),
    "v3 halves": ("deepseek_v3", V3 | {"rope_interleave": False}),
    "v3 biases": ("deepseek_v3", V3 | {"attention_bias": True}),
    "one group": ("deepseek_v3", V3 | {"n_group": 1, "topk_group": 1}),
    "weights as they are": ("deepseek_v3", V3 | {"norm_topk_prob": False}),
}
MUTATIONS: dict[str, Mutation] = {
    "theta": ("v3 yarn", {"rope_parameters": YARN | {"rope_theta": 1.2e4}}),
    "theta of v2": ("v2 yarn", {"rope_parameters": YARN | {"rope_theta": 1.2e4}}),
    "scale of scores": ("v3 yarn", {"rope_parameters": YARN | {"mscale_all_dim": 0.8}}),
    "a blend": ("v3 yarn without a blend", {"rope_parameters": YARN}),
    "halves": ("v3", {"rope_interleave": False}),
    "more groups": ("v3", {"topk_group": 3}),
    "other groups": ("v2", {"n_group": 2, "topk_group": 1}),
    "no groups": ("v2", {"topk_method": "greedy"}),
    "fewer experts": ("v3", {"num_experts_per_tok": 2}),
    "scale of experts": ("v3", {"routed_scaling_factor": 2.4}),
    "router": ("v3", "mlp.gate.weight"),
    "router of v2": ("v2", "mlp.gate.weight"),
    "what only chooses": ("v3", "e_score_correction_bias"),
    "what latents become": ("v3", "kv_b_proj.weight"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    check_logits(tmp_path, VARIANTS[variant])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, wrong = MUTATIONS[mutation]
    check_mutant(tmp_path, VARIANTS[variant], wrong)


@pytest.mark.parametrize("variant", ["v2", "v3"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    check_rounding(tmp_path, VARIANTS[variant])
