"""Small checkpoints whose layers' matrices are packed in any format."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.gpu_pool.models.family_check import Variant
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.weights.formats.packers import FORMATS

NEVER_PACKED = ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "norm.weight")


def write_packed(folder: Path, form: str, variant: Variant) -> tuple[Path, Path]:
    """A checkpoint whose layers' matrices are packed, and the same with what they stand for."""
    config, pack = FORMATS[form]
    model_type, sizes = variant
    plain, packed = write_checkpoint(folder / "plain", model_type, **sizes), folder / "packed"
    state = load_file(plain / "model.safetensors")
    shipped = dict[str, torch.Tensor]()
    for name, tensor in list(state.items()):
        if tensor.dim() != 2 or name.endswith(NEVER_PACKED):
            shipped[name] = tensor
            continue
        pieces = pack(tensor)
        state[name] = pieces.weight
        module = name.removesuffix("weight")
        shipped |= {f"{module}{ending}": piece for ending, piece in pieces.tensors.items()}
        if "weight_scale" in pieces.tensors:
            shipped[f"{module}input_scale"] = torch.ones(1)
    save_file(state, plain / "model.safetensors", {"format": "pt"})
    packed.mkdir()
    save_file(shipped, packed / "model.safetensors", {"format": "pt"})
    description = json.loads((plain / "config.json").read_text())
    description["quantization_config"] = config
    (packed / "config.json").write_text(json.dumps(description))
    return packed, plain
