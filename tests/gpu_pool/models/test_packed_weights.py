"""Whole models in every packed format, against transformers with the numbers they stand for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_pool.models.errors import CheckpointError
from tests.gpu_pool.models.family_check import (
    MAX_ERROR,
    MIN_MUTATION,
    Variant,
    create_driver,
    measure_error,
)
from tests.gpu_pool.models.family_checkpoint import Reference, copy_checkpoint
from tests.gpu_pool.models.packed_checkpoint import write_packed
from tests.gpu_pool.weights.formats.packers import FORMATS

LLAMA: Variant = ("llama", {})
OTHERS: dict[str, tuple[str, Variant]] = {
    "biases": ("gptq of 4 bits", ("qwen2", {})),
    "biases and a tied head": ("awq", ("qwen2", {"tie_word_embeddings": True})),
    "experts": (
        "int4 in groups with zeros",
        (
            "qwen3_moe",
            {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
        ),
    ),
}


@pytest.mark.parametrize("form", FORMATS)
def test_logits_are_those_of_the_numbers_that_are_packed(form: str, tmp_path: Path) -> None:
    packed, plain = write_packed(tmp_path, form, LLAMA)
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR


@pytest.mark.parametrize("what", OTHERS)
def test_networks_with_more_than_matrices_are_found_whole(what: str, tmp_path: Path) -> None:
    packed, plain = write_packed(tmp_path, *OTHERS[what])
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR


def test_biases_of_zeros_that_a_network_does_not_have_are_left_out(tmp_path: Path) -> None:
    packed, plain = write_packed(tmp_path, "gptq of 4 bits", LLAMA)
    path = packed / "model.safetensors"
    shipped = load_file(path)
    modules = [name.removesuffix("qweight") for name in shipped if name.endswith("qweight")]
    for module in modules:
        shipped[f"{module}bias"] = torch.zeros(shipped[f"{module}scales"].shape[1]).half()
    save_file(shipped, path, {"format": "pt"})
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR
    shipped[f"{modules[0]}bias"][-1] = 1e-3
    save_file(shipped, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"unexpected `{modules[0]}bias`.$"):
        create_driver(packed)


def test_a_bias_of_zeros_that_a_network_has_is_read(tmp_path: Path) -> None:
    packed, plain = write_packed(tmp_path, "gptq of 4 bits", ("qwen2", {}))
    for folder in (packed, plain):
        state = load_file(folder / "model.safetensors")
        state["model.layers.0.self_attn.q_proj.bias"].zero_()
        save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR


MUTATIONS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "factors": ("awq", "down_proj.scales", {}),
    "zeros": ("awq", "down_proj.qzeros", {}),
    "zeros of int4": ("int4 in groups with zeros", "down_proj.weight_zero_point", {}),
    "order by activation": ("gptq of 4 bits by activation", "down_proj.g_idx", {}),
    "version": ("gptq of 4 bits", None, {"checkpoint_format": "gptq_v2"}),
    "factors of rows": ("fp8 per channel", "down_proj.weight_scale", {}),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    form, ending, changes = MUTATIONS[mutation]
    packed, plain = write_packed(tmp_path, form, LLAMA)
    mutant = copy_checkpoint(
        packed,
        tmp_path / "wrong",
        tensors={} if ending is None else {ending: lambda piece: piece.roll(1, 0)},
        quantization_config=FORMATS[form][0] | changes,
    )
    assert measure_error(mutant, Reference(plain)) > MIN_MUTATION
