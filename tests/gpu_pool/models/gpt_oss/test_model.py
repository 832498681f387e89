"""gpt-oss against transformers, in plain and in MXFP4 weights, and mutants."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.gpu_pool.models.family_check import MAX_ERROR, measure_error, measure_roundings
from tests.gpu_pool.models.family_checkpoint import (
    Reference,
    copy_checkpoint,
    write_checkpoint,
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
VARIANTS: dict[str, dict[str, Any]] = {
    "windows in every other layer": {},
    "wide window": {"sliding_window": 530},
    "no biases": {"attention_bias": False},
}
MUTATIONS: dict[str, dict[str, Any]] = {
    "window": {"sliding_window": 39},
    "other layers": {"layer_types": ["full_attention", "sliding_attention"] * 2},
    "theta": {"rope_parameters": YARN | {"rope_theta": 100_000.0}},
    "range of the blend": {"rope_parameters": YARN | {"truncate": True}},
    "fewer experts": {"num_experts_per_tok": 2},
    "gate's limit": {"swiglu_limit": 1.8},
    "gate's slope": {"swiglu_alpha": 1.5},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "gpt_oss", **(GPT_OSS | VARIANTS[variant]))
    assert measure_error(folder, Reference(folder)) <= MAX_ERROR


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "right", "gpt_oss", **GPT_OSS)
    mutant = copy_checkpoint(folder, tmp_path / "wrong", **MUTATIONS[mutation])
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


@pytest.mark.parametrize("tensor", ["sinks", "router.weight", "router.bias", "gate_up_proj_bias"])
def test_a_mutated_tensor_is_found(tensor: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "right", "gpt_oss", **GPT_OSS)
    rolled = {tensor: lambda weight: weight.roll(1, 0)}
    mutant = copy_checkpoint(folder, tmp_path / "wrong", tensors=rolled)
    assert measure_error(mutant, Reference(folder)) > 100 * MAX_ERROR


def pack_experts(folder: Path, target: Path) -> Path:
    """Gives `folder` experts that MXFP4 holds exactly; `target` is the same packed."""
    generator = torch.Generator().manual_seed(5)
    state = load_file(folder / "model.safetensors")
    packed = dict(state)
    for name, tensor in state.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            num_experts, num_inputs, num_outputs = tensor.shape
            shape = (num_experts, num_outputs, num_inputs // 32, 16)
            blocks = torch.randint(0, 256, shape, generator=generator).to(torch.uint8)
            scales = torch.randint(121, 125, shape[:3], generator=generator).to(torch.uint8)
            state[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            assert state[name].shape == tensor.shape
            del packed[name]
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    target.mkdir()
    save_file(packed, target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_mxfp4_experts_are_what_transformers_unpacks(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "plain", "gpt_oss", **GPT_OSS)
    packed = pack_experts(folder, tmp_path / "packed")
    assert measure_error(packed, Reference(folder)) <= MAX_ERROR


def test_bfloat16_rounds_no_worse_than_transformers(tmp_path: Path) -> None:
    def write(folder: Path, seed: int) -> Path:
        return write_checkpoint(folder, "gpt_oss", seed=seed, **GPT_OSS)

    roundings = measure_roundings(write, tmp_path)
    assert 0 < min(roundings.values()) <= max(roundings.values()) <= 1.1, roundings
