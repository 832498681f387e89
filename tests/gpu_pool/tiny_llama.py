"""Tiny Llama checkpoints with random weights, written and answered by transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    # Larger than usual, so that positions and neighbours show in the logits.
    "initializer_range": 0.15,
}


def write_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    shard_size: str = "1GB",
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> None:
    """Saves a checkpoint; `changes` go over `SIZES`."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard_size)


@torch.inference_mode()
def compute_reference_logits(
    folder: Path, token_ids: list[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Logits `[T, V]` of transformers, in one pass without a cache."""
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()(torch.tensor([token_ids])).logits[0]
