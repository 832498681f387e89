"""A Llama whose next token depends on the last one alone, so that its distribution is exact.

Nothing that attention or the gated product computes reaches the output: row a of the transition
matrix is what transformers says of the prompt [a].
"""

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE: Final = 6


def write_markov_llama(folder: Path) -> None:
    """Saves the checkpoint."""
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=32,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)


@torch.inference_mode()
def read_transitions(folder: Path) -> Tensor:
    """Logits `[V, V]` of the token behind each token, by transformers, in double precision."""
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    return model.eval()(torch.arange(VOCAB_SIZE)[:, None]).logits[:, 0]
