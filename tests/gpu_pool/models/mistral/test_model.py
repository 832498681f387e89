"""Mistral and Mixtral against transformers, and mutants of each."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu_pool.models.family_check import MAX_ERROR, measure_error, measure_roundings
from tests.gpu_pool.models.family_checkpoint import (
    Reference,
    copy_checkpoint,
    write_checkpoint,
)

EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": None}),
    "window": ("mistral", {"sliding_window": 40}),
    "wide window": ("mistral", {"sliding_window": 530}),
    "mixtral": ("mixtral", EXPERTS),
    "mixtral with a window": ("mixtral", EXPERTS | {"sliding_window": 40}),
}
MUTATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "theta": ("mistral", {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
    "window one shorter": ("window", {"sliding_window": 39}),
    "window one longer": ("window", {"sliding_window": 41}),
    "wide window": ("wide window", {"sliding_window": 529}),
    "no window": ("window", {"sliding_window": None}),
    "fewer experts": ("mixtral", {"num_experts_per_tok": 1}),
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


def test_a_mutated_router_is_found(tmp_path: Path) -> None:
    folder = write_variant(tmp_path / "right", "mixtral")
    rolled = {"gate.weight": lambda weight: weight.roll(1, 0)}
    mutant = copy_checkpoint(folder, tmp_path / "wrong", tensors=rolled)
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


@pytest.mark.parametrize("variant", ["window", "mixtral"])
def test_bfloat16_rounds_no_worse_than_transformers(variant: str, tmp_path: Path) -> None:
    def write(folder: Path, seed: int) -> Path:
        return write_variant(folder, variant, seed)

    roundings = measure_roundings(write, tmp_path)
    assert 0 < min(roundings.values()) <= max(roundings.values()) <= 1.1, roundings
