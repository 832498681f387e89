"""Writes Llama checkpoints with random weights, for benchmarks where only the sizes matter."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from gpu_pool.weights.config import read_config


@dataclass(frozen=True, slots=True)
class LlamaShapes:
    """Sizes by the names of `config.json`; embeddings are tied."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int


SHAPES = {
    "tiny": LlamaShapes(256, 768, 8, 8, 4, 32, 8192),
    "50m": LlamaShapes(512, 1536, 16, 8, 4, 64, 2048),
    "qwen3-0.6b-like-llama": LlamaShapes(1024, 3072, 28, 16, 8, 128, 151_936),
}


def write_random_llama(
    folder: Path, shapes: LlamaShapes, dtype: torch.dtype, seed: int = 0
) -> None:
    """A checkpoint that `create_executor` and transformers load."""
    config = {name: getattr(shapes, name) for name in shapes.__slots__}
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": 0,
        "bos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    sources = read_config(folder).network.parameters.values()
    parts = {part.name: part.shape for source in sources for part in source.parts}
    tensors = {name: _fill(shape, dtype) for name, shape in parts.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _fill(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Ones for norms, small noise for matrices."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=dtype)
    return torch.randn(shape).mul_(0.02).to(dtype)
