"""Kimi K2 with its experts in int4 groups against transformers with the unpacked numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpu_pool.weights.config import read_config
from tests.gpu_pool.models.deepseek.kimi_checkpoint import describe_packing, let_see, write_kimi
from tests.gpu_pool.models.family_check import MAX_ERROR, MIN_MUTATION, measure_error
from tests.gpu_pool.models.family_checkpoint import Reference, copy_checkpoint

LOW_HALVES = 0x0F0F0F0F
SIGNS = 0x77777777 + 1 - (1 << 32)


def swap_halves(words: Tensor) -> Tensor:
    """The two numbers of every byte exchanged."""
    return (words & LOW_HALVES) << 4 | (words >> 4) & LOW_HALVES


Change = tuple[str, Callable[[Tensor], Tensor], dict[str, Any]]
MUTATIONS: dict[str, Change] = {
    "scale": ("down_proj.weight_scale", lambda scales: scales.roll(1, 0), {}),
    "order of halves": ("_packed", swap_halves, {}),
    "numbers without an offset": ("_packed", lambda words: words ^ SIGNS, {}),
    "size of groups": (
        "_scale",
        lambda scales: scales[:, ::2],
        {"quantization_config": describe_packing(64)},
    ),
}


def test_logits_are_those_of_the_unpacked_numbers(tmp_path: Path) -> None:
    packed, plain = write_kimi(tmp_path)
    names = load_file(packed / "model.safetensors").keys()
    assert sum(name.endswith("experts.0.up_proj.weight_packed") for name in names) == 2
    assert not any("experts" not in name for name in names if name.endswith("_packed"))
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR


def test_beside_what_sees_they_are_the_same(tmp_path: Path) -> None:
    packed, plain = write_kimi(tmp_path)
    let_see(packed)
    assert read_config(packed).dtype == torch.bfloat16  # as the text part says, like all else
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR


def test_a_tied_head_that_is_stored_all_the_same_is_left_unread(tmp_path: Path) -> None:
    packed, plain = write_kimi(tmp_path, tie_word_embeddings=True)
    let_see(packed)
    path = packed / "model.safetensors"
    weights = load_file(path)
    weights["language_model.lm_head.weight"] = torch.zeros_like(
        weights["language_model.model.embed_tokens.weight"]
    )
    save_file(weights, path, {"format": "pt"})
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    ending, change, changes = MUTATIONS[mutation]
    packed, plain = write_kimi(tmp_path)
    mutant = copy_checkpoint(packed, tmp_path / "wrong", tensors={ending: change}, **changes)
    assert measure_error(mutant, Reference(plain)) > MIN_MUTATION
