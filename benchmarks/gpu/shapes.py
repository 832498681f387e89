"""Sizes of published models, as their `config.json` would say them.

Must not know weights. Read next: `random_network`.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_pool.models.network import CausalNetwork, require_causal
from gpu_pool.weights.config import read_config

BLOCK_SIZE: Final = 16


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of one model."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    is_tied: bool = False
    head_dim: int = 128
    others: tuple[tuple[str, Any], ...] = ()
    """What `config.json` of this architecture has besides."""


LLAMA_8B: Final = "llama-3.1-8b"
QWEN_8B: Final = "qwen3-8b"
QWEN_4B: Final = "qwen3-4b"
QWEN_SMALL: Final = "qwen3-0.6b"
HALF_SCOUT: Final = "half of llama-4-scout"
TINY: Final = "tiny"
"""For rehearsals."""

_SCOUT: Final = (
    ("intermediate_size_mlp", 16384),
    ("num_local_experts", 16),
    ("num_experts_per_tok", 1),
    ("interleave_moe_layer_step", 1),
    ("attention_chunk_size", 8192),
    ("use_qk_norm", True),
)
SHAPES: Final = {
    LLAMA_8B: Shapes("LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128_256),
    QWEN_8B: Shapes("Qwen3ForCausalLM", 4096, 12288, 36, 32, 8, 151_936),
    QWEN_4B: Shapes("Qwen3ForCausalLM", 2560, 9728, 36, 32, 8, 151_936, is_tied=True),
    QWEN_SMALL: Shapes("Qwen3ForCausalLM", 1024, 3072, 28, 16, 8, 151_936, is_tied=True),
    HALF_SCOUT: Shapes("Llama4ForCausalLM", 5120, 8192, 24, 40, 8, 202_048, others=_SCOUT),
    TINY: Shapes("Qwen3ForCausalLM", 64, 128, 2, 4, 2, 512, is_tied=True, head_dim=32),
}


def describe_network(shapes: Shapes, context_window: int) -> CausalNetwork:
    """The network as its family describes it."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shapes, context_window)
        return require_causal(read_config(Path(folder)).network)


def write_config(folder: Path, shapes: Shapes, context_window: int) -> None:
    """The model's `config.json`."""
    config: dict[str, Any] = {
        "architectures": [shapes.architecture],
        "model_type": shapes.architecture.removesuffix("ForCausalLM").lower(),
        "hidden_size": shapes.hidden_size,
        "intermediate_size": shapes.intermediate_size,
        "num_hidden_layers": shapes.num_layers,
        "num_attention_heads": shapes.num_heads,
        "num_key_value_heads": shapes.num_kv_heads,
        "head_dim": shapes.head_dim,
        "vocab_size": shapes.vocab_size,
        "max_position_embeddings": context_window,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": shapes.is_tied,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
        "bos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config | dict(shapes.others)))
