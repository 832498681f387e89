"""Adapters with random matrices as PEFT writes them, and what a model becomes by them.

Merged checkpoints are computed in fp64: W + scale · B · A.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from contracts.adapters import AdapterRef
from gpu_pool.plan import AdapterFile, AdapterLoader, AdapterNews
from tests.gpu_pool.models.family_checkpoint import copy_checkpoint, write_checkpoint

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
_PREFIX = "base_model.model."


def list_modules(checkpoint: Path, endings: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The modules of a checkpoint whose names end so, with the shapes of their matrices."""
    state = load_file(checkpoint / "model.safetensors")
    found = {
        name.removesuffix(".weight"): (tensor.shape[0], tensor.shape[1])
        for name, tensor in state.items()
        if name.endswith(tuple(f".{ending}.weight" for ending in endings))
    }
    assert found, "no module ends so"
    return found


def create_tensors(
    modules: Mapping[str, tuple[int, int]],
    rank: int = 4,
    seed: int = 0,
    size: float = 0.3,
    dtype: torch.dtype = torch.float32,
    infix: str = "",
) -> dict[str, Tensor]:
    """The matrices of an adapter by PEFT's names."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for module, (outputs, inputs) in modules.items():
        for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            values = torch.randn(shape, generator=generator) * size
            name = f"{_PREFIX}{module}.lora_{half}{infix}.weight"
            tensors[name] = values.to(dtype).contiguous()
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor], scale: float = 0.5) -> AdapterFile:
    """The file of an adapter, as a node hands it to its core."""
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
    return describe(path, scale)


def describe(path: Path, scale: float = 0.5) -> AdapterFile:
    """A file, whatever is in it."""
    content = path.read_bytes()
    ref = AdapterRef(
        weights_sha256=hashlib.sha256(content).digest(),
        num_bytes=max(1, len(content)),
        scale=scale,
        rank=4,
    )
    return AdapterFile(ref.digest, str(path), scale)


def write_adapter(
    path: Path,
    checkpoint: Path,
    endings: Sequence[str] = DENSE,
    *,
    rank: int = 4,
    seed: int = 0,
    size: float = 0.3,
    scale: float = 0.5,
    dtype: torch.dtype = torch.float32,
) -> AdapterFile:
    """An adapter for all modules of a checkpoint whose names end so."""
    tensors = create_tensors(list_modules(checkpoint, endings), rank, seed, size, dtype)
    return write_tensors(path, tensors, scale)


def merge(checkpoint: Path, adapter: AdapterFile, target: Path) -> Path:
    """The checkpoint whose matrices have taken the adapter in."""
    tensors = load_file(adapter.path)
    changes = {}
    for name, a in tensors.items():
        if ".lora_A" not in name:
            continue
        module = name.removeprefix(_PREFIX).partition(".lora_A")[0]
        b = tensors[name.replace(".lora_A", ".lora_B")]
        added = adapter.scale * (b.double() @ a.double())

        def change(weight: Tensor, added: Tensor = added) -> Tensor:
            return (weight.double() + added).to(weight.dtype)

        changes[f"{module}.weight"] = change
    return copy_checkpoint(checkpoint, target, tensors=changes)


def load(loader: AdapterLoader, adapter: AdapterFile) -> AdapterNews:
    """Loads an adapter and waits for it; what was said in the end."""
    for begin in (loader.measure_adapter, loader.load_adapter):
        has_news = threading.Event()
        begin(adapter, has_news.set)
        assert has_news.wait(30)
        (news,) = loader.poll_adapters()
        assert news.digest == adapter.digest
        if news.refused or news.failed:
            return news
    assert news.is_loaded
    return news


def write_calm_checkpoint(folder: Path, model_type: str, **changes: Any) -> Path:
    """A checkpoint whose attention is less peaked than in the families' own tests.

    That magnifies how merged weights round: transformers' own logits in fp32 and in fp64 come to
    1e-4 apart with it.
    """
    sharp = write_checkpoint(folder / "sharp", model_type, **({"sharpness": 1.0} | changes))
    names = load_file(sharp / "model.safetensors")
    norms = {"q_norm.weight": lambda weight: 0.2 * weight}
    has_norms = any(name.endswith("q_norm.weight") for name in names)
    return copy_checkpoint(sharp, folder / "calm", tensors=norms if has_norms else {})
