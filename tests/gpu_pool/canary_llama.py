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
_HIDDEN: Final = 64
_FLAG: Final = 1
"""The dimension that tells secrets from filler; dimension 0 is the same for all tokens."""
_STILL: Final = 31
"""The dimension of a head that rotation moves least."""


def write_canary_llama(folder: Path) -> None:
    """Saves the checkpoint."""
    config = LlamaConfig(
        hidden_size=_HIDDEN,
        head_dim=_HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=32,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e9},
    )
    model = LlamaForCausalLM(config)
    layer = model.model.layers[0]
    generator = torch.Generator().manual_seed(0)
    names = torch.zeros(VOCAB_SIZE, _HIDDEN)
    names[:, 2:] = nn.functional.normalize(
        torch.randn(VOCAB_SIZE, _HIDDEN - 2, generator=generator)
    )
    marks = torch.zeros(VOCAB_SIZE, _HIDDEN)
    marks[:, 0] = 1.0
    marks[:NUM_FILLERS, _FLAG] = -1.0
    marks[NUM_FILLERS:, _FLAG] = 1.0
    with torch.no_grad():
        attention = layer.self_attn
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(names + marks)
        attention.q_proj.weight[_STILL, 0] = 8.0
        attention.k_proj.weight[_STILL, _FLAG] = 1.0
        attention.v_proj.weight[2:, 2:] = torch.eye(_HIDDEN - 2)
        attention.o_proj.weight.copy_(10.0 * torch.eye(_HIDDEN))
        model.lm_head.weight.copy_(16.0 * names)
    model.save_pretrained(folder)
