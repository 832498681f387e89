"""The network of tiny-chat: a Llama in plain torch, with the parameter names of Hugging Face.

Owns the mathematics for training and for local answers; it knows no text and no files.
Read next: `answer.py`.

Shapes: B rows, T tokens, D hidden size, K key-value heads, H head dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_MAX_PLAIN_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyChatConfig:
    """The sizes of the network; the field names are those of `config.json`."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


@dataclass(slots=True)
class LayerCache:
    """The keys and values one layer has seen, each `[B, K, T, H]`."""

    keys: Tensor
    values: Tensor


def rotary_tables(positions_BT: Tensor, config: TinyChatConfig) -> tuple[Tensor, Tensor]:
    """Returns the cosine and sine of every position, each `[B, 1, T, H]`."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions_BT.device)
    exponents = pairs / config.head_dim
    angles = positions_BT[:, :, None].float() * (config.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns `x` turned by its positions, halves paired as Hugging Face pairs them."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


def mix(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the values mixed by causal attention, `[B, N, T, H]`.

    Few tokens go through plain products: on a CPU the fused kernel's backward pass is four times
    slower there, and conversations are short.
    """
    group = queries.shape[1] // keys.shape[1]
    if mask is None and queries.shape[2] == keys.shape[2] <= _MAX_PLAIN_TOKENS:
        return _mix_plainly(queries, keys, values, group)
    return functional.scaled_dot_product_attention(
        queries,
        keys.repeat_interleave(group, dim=1),
        values.repeat_interleave(group, dim=1),
        attn_mask=mask,
        is_causal=mask is None,
    )


def _mix_plainly(queries: Tensor, keys: Tensor, values: Tensor, group: int) -> Tensor:
    """Returns the same, the query heads of a key-value head folded into one product."""
    num_rows, num_heads, num_tokens, head_dim = queries.shape
    folded = queries.reshape(-1, group * num_tokens, head_dim)
    flat_keys = keys.reshape(-1, num_tokens, head_dim)
    flat_values = values.reshape(-1, num_tokens, head_dim)
    scores = torch.bmm(folded, flat_keys.transpose(1, 2)) * head_dim**-0.5
    future = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=queries.device).triu(1)
    scores = scores.view(-1, group, num_tokens, num_tokens).masked_fill(future, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32).to(flat_values.dtype)
    mixed = torch.bmm(weights.view(-1, group * num_tokens, num_tokens), flat_values)
    return mixed.view(num_rows, num_heads, num_tokens, head_dim)


class Attention(nn.Module):
    """Causal attention with grouped key-value heads."""

    def __init__(self, config: TinyChatConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: LayerCache | None,
    ) -> tuple[Tensor, LayerCache]:
        """Returns the mixed hidden states and the cache grown by these tokens."""
        num_rows, num_tokens, _ = x_BTD.shape
        heads = (num_rows, num_tokens, -1, self.head_dim)
        queries = rotate(self.q_proj(x_BTD).view(heads).transpose(1, 2), *rotary)
        keys = rotate(self.k_proj(x_BTD).view(heads).transpose(1, 2), *rotary)
        values = self.v_proj(x_BTD).view(heads).transpose(1, 2)
        if cache is not None:
            keys = torch.cat((cache.keys, keys), dim=2)
            values = torch.cat((cache.values, values), dim=2)
        mixed = mix(queries, keys, values, mask)
        flat = mixed.transpose(1, 2).reshape(num_rows, num_tokens, -1)
        return self.o_proj(flat), LayerCache(keys, values)


class GatedMlp(nn.Module):
    """The SwiGLU feed-forward network."""

    def __init__(self, config: TinyChatConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Returns the hidden states after gate, product and projection."""
        return self.down_proj(functional.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


class DecoderLayer(nn.Module):
    """One block: attention, then the feed-forward network, each behind a norm and added back."""

    def __init__(self, config: TinyChatConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMlp(config)

    def forward(
        self,
        x_BTD: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: LayerCache | None,
    ) -> tuple[Tensor, LayerCache]:
        """Returns the hidden states after this block, and its cache."""
        mixed, grown = self.self_attn(self.input_layernorm(x_BTD), rotary, mask, cache)
        x_BTD = x_BTD + mixed
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD)), grown


class Decoder(nn.Module):
    """The body under `model.`: embedding, blocks and the last norm."""

    def __init__(self, config: TinyChatConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class TinyChat(nn.Module):
    """The whole network; the embedding is also the output head."""

    def __init__(self, config: TinyChatConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)

    def forward(
        self,
        token_ids_BT: Tensor,
        positions_BT: Tensor,
        mask: Tensor | None = None,
        caches: list[LayerCache] | None = None,
    ) -> tuple[Tensor, list[LayerCache]]:
        """Returns the normed hidden states `[B, T, D]` and one cache per layer."""
        x_BTD = self.model.embed_tokens(token_ids_BT)
        rotary = rotary_tables(positions_BT, self.config)
        grown: list[LayerCache] = []
        for index, layer in enumerate(self.model.layers):
            x_BTD, cache = layer(x_BTD, rotary, mask, caches[index] if caches else None)
            grown.append(cache)
        return self.model.norm(x_BTD), grown

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits `[..., V]` of hidden states."""
        return functional.linear(hidden, self.model.embed_tokens.weight)
