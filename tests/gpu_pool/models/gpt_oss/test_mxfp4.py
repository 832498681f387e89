"""gpt-oss with its experts in MXFP4 against transformers with the numbers that it unpacks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.gpu_pool.models.family_check import MAX_ERROR, MIN_MUTATION, measure_error, write_variant
from tests.gpu_pool.models.family_checkpoint import Reference, copy_checkpoint
from tests.gpu_pool.models.gpt_oss.test_model import VARIANTS

MUTATIONS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "scale": ("down_proj_scales", lambda scales: scales.roll(1, 1)),
    "order of halves": ("_blocks", lambda blocks: blocks << 4 | blocks >> 4),
}


def write_packed(folder: Path) -> tuple[Path, Path]:
    """A checkpoint whose experts MXFP4 holds exactly, packed, and the same unpacked."""
    plain, packed = write_variant(folder / "plain", VARIANTS["gpt-oss"]), folder / "packed"
    generator = torch.Generator().manual_seed(5)
    state = load_file(plain / "model.safetensors")
    shipped = dict(state)
    for name, tensor in state.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            num_experts, num_inputs, num_outputs = tensor.shape
            shape = (num_experts, num_outputs, num_inputs // 32, 16)
            blocks = torch.randint(0, 256, shape, generator=generator).to(torch.uint8)
            scales = torch.randint(121, 125, shape[:3], generator=generator).to(torch.uint8)
            state[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            assert state[name].shape == tensor.shape
            del shipped[name]
            shipped |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(state, plain / "model.safetensors", {"format": "pt"})
    packed.mkdir()
    save_file(shipped, packed / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (packed / "config.json").write_text(json.dumps(config))
    return packed, plain


def test_logits_are_those_of_what_transformers_unpacks(tmp_path: Path) -> None:
    packed, plain = write_packed(tmp_path)
    assert measure_error(packed, Reference(plain)) <= MAX_ERROR


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str, tmp_path: Path) -> None:
    ending, change = MUTATIONS[mutation]
    packed, plain = write_packed(tmp_path)
    mutant = copy_checkpoint(packed, tmp_path / "wrong", tensors={ending: change})
    assert measure_error(mutant, Reference(plain)) > MIN_MUTATION
