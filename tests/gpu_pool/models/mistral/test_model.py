"""Mistral and Mixtral against transformers, and mutants of each."""

from pathlib import Path

import pytest

from tests.gpu_pool.models.family_check import (
    Mutation,
    Variant,
    check_logits,
    check_mutant,
    check_rounding,
)

EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
VARIANTS: dict[str, Variant] = {
    "mistral": ("mistral", {"sliding_window": None}),
    "window": ("mistral", {"sliding_window": 40}),
    "wide window": ("mistral", {"sliding_window": 530}),
    "mixtral": ("mixtral", EXPERTS),
    "mixtral with a window": ("mixtral", EXPERTS | {"sliding_window": 40}),
}
MUTATIONS: dict[str, Mutation] = {
    "theta": ("mistral", {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
    "theta of mixtral": (
        "mixtral",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}},
    ),
    "window one shorter": ("window", {"sliding_window": 39}),
    "window one longer": ("window", {"sliding_window": 41}),
    "wide window": ("wide window", {"sliding_window": 529}),
    "window of mixtral": ("mixtral with a window", {"sliding_window": 39}),
    "no window": ("window", {"sliding_window": None}),
    "fewer experts": ("mixtral", {"num_experts_per_tok": 1}),
    "router": ("mixtral", "gate.weight"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    check_logits(tmp_path, VARIANTS[variant])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    variant, wrong = MUTATIONS[mutation]
    check_mutant(tmp_path, VARIANTS[variant], wrong)


@pytest.mark.parametrize("variant", ["window", "mixtral"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    check_rounding(tmp_path, VARIANTS[variant])
