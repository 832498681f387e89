"""A Llama with weights made by hand whose answers are words out of its own context.

Every token is marked as a secret or as filler. The one layer attends to secrets alone and puts
their mean where the logits come from: each answer is made of secrets that the sequence was told.
A block of somebody else's in its table, and the answer holds somebody else's secret.
"""

from pathlib import Path
from typing import Final

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE: Final = 2304
NUM_FILLERS: Final = 64
"""Tokens below are filler, all others are secrets."""
_FLAG: Final = 1
"""The dimension that tells secrets from filler; dimension 0 is the same for all tokens."""


def write_canary_llama(folder: Path, vocab_size: int = VOCAB_SIZE, hidden: int = 64) -> None:
    """Saves the checkpoint. With more dimensions, `hidden`, tokens are less alike: where answers
    have several secrets or are drawn by chance, what is likely still is one of them.
    """
    config = LlamaConfig(
        hidden_size=hidden,
        head_dim=hidden,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=32,
        vocab_size=vocab_size,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e9},
    )
    model = LlamaForCausalLM(config)
    layer = model.model.layers[0]
    generator = torch.Generator().manual_seed(0)
    names = torch.zeros(vocab_size, hidden)
    names[:, 2:] = nn.functional.normalize(torch.randn(vocab_size, hidden - 2, generator=generator))
    marks = torch.zeros(vocab_size, hidden)
    marks[:, 0] = 1.0
    marks[:NUM_FILLERS, _FLAG] = -1.0
    marks[NUM_FILLERS:, _FLAG] = 1.0
    still = hidden // 2 - 1  # the dimension of the head that rotation moves least
    with torch.no_grad():
        attention = layer.self_attn
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(names + marks)
        attention.q_proj.weight[still, 0] = 8.0
        attention.k_proj.weight[still, _FLAG] = 1.0
        attention.v_proj.weight[2:, 2:] = torch.eye(hidden - 2)
        attention.o_proj.weight.copy_(10.0 * torch.eye(hidden))
        model.lm_head.weight.copy_(16.0 * names)
    model.save_pretrained(folder)
