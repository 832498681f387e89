"""A checkpoint's layers in four bits a number, as compressed-tensors has them and as GGUF's Q4_0.

Both hold the same numbers: groups of 32 inputs with a factor in fp16, and 8 stands for zero. What
is embedded, and the head, stay as they are. Read next: `cpu_peers`, which writes both.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 32
_ZERO = 8
_MOST = 7
_PACKED = "_packed"
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
            },
        }
    },
    "ignore": ["lm_head"],
}


def write_int4(checkpoint: Path, folder: Path) -> None:
    """The checkpoint with the matrices of its layers in four bits."""
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.weights"))
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        if tensor.ndim != 2 or ".layers." not in name:
            tensors[name] = tensor
            continue
        numbers, scales = _round(tensor)
        tensors[name + _PACKED] = _join_words(numbers)
        tensors[f"{name}_scale"] = scales
        tensors[f"{name}_shape"] = torch.tensor(tensor.shape)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIG}))


def list_q4_0(checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    """The matrices of four bits by name, each row as GGUF's blocks: a factor and 16 bytes."""
    tensors = load_file(checkpoint / "model.safetensors")
    for name, words in tensors.items():
        if name.endswith(_PACKED):
            stem = name.removesuffix(_PACKED)
            yield stem, _arrange_blocks(words, tensors[f"{stem}_scale"])


def _round(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers `[M, K]` of 1 to 15 and factors `[M, K / 32]` in fp16."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    scales = (groups.abs().amax(-1) / _MOST).half()
    numbers = (groups / scales.float()[..., None]).round().clamp(-_MOST, _MOST) + _ZERO
    return numbers.flatten(1).to(torch.int32), scales


def _join_words(numbers: Tensor) -> Tensor:
    """Eight numbers a word, the first in the lowest bits."""
    eights = numbers.unflatten(1, (-1, 8)).to(torch.int64)
    shifts = torch.arange(0, 32, 4)
    words = (eights << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _arrange_blocks(words: Tensor, scales: Tensor) -> Tensor:
    """Bytes `[M, K / 32 · 18]`: of each block the second half of its numbers is in high halves."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    numbers = ((words[..., None] >> shifts) & 15).flatten(1).to(torch.uint8)
    halves = numbers.unflatten(1, (-1, 2, GROUP // 2))
    joined = halves[:, :, 0] | halves[:, :, 1] << 4
    factors = scales.contiguous().view(torch.uint8).unflatten(1, (-1, 2))
    return torch.cat((factors, joined), -1).flatten(1)
