"""The `config.json` of Gemma 2 and Gemma 3."""

from typing import Any, Final

import msgspec

from gpu_pool.models.config_json import (
    DecoderJson,
    RopeJson,
    decode_config,
    read_decoder,
    read_reaches,
    read_rope,
    read_rotary,
    read_text_part,
    require_activation,
    require_positive,
)
from gpu_pool.models.decoder_names import list_ignored
from gpu_pool.models.decoder_network import create_causal_network
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.gemma.layer import GemmaConfig
from gpu_pool.models.gemma.model import GemmaModel
from gpu_pool.models.gemma.names import list_parameters
from gpu_pool.models.network import CausalNetwork

_TANH_GELU: Final = "gelu_pytorch_tanh"
_LEFT_UNREAD: Final = {"vision_tower.", "multi_modal_projector.", "language_model.lm_head.weight"}


class _GemmaJson(DecoderJson, frozen=True, kw_only=True):
    """Gemma's own fields, and its own defaults: files of Gemma 3 leave much out."""

    vocab_size: int = 262_208
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    hidden_activation: str | None = _TANH_GELU
    query_pre_attn_scalar: float = 256
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    attention_bias: bool = False
    sliding_window: int | None = 4096
    sliding_window_pattern: int | None = None
    rope_local_base_freq: float = 10_000.0
    use_bidirectional_attention: bool | None = None


class _LayerRopes(msgspec.Struct, frozen=True):
    """Rotary settings by the kind of layer."""

    full_attention: RopeJson | None = None
    sliding_attention: RopeJson | None = None


class _RopesJson(msgspec.Struct, frozen=True):
    """How newer files of Gemma 3 hold them."""

    rope_parameters: _LayerRopes | None = None


def describe_gemma2(content: bytes) -> CausalNetwork:
    """A Gemma 2. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _GemmaJson)
    rotary = read_rotary(json)
    return _describe(
        _read(json, 2, rotary=rotary, window_rotary=rotary, has_head_norm=False), "model."
    )


def describe_gemma3(content: bytes, prefix: str = "model.") -> CausalNetwork:
    """A Gemma 3 for text. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _GemmaJson)
    if json.attn_logit_softcapping is not None:
        raise CheckpointError("attn_logit_softcapping is not supported; Gemma 3 caps no scores.")
    ropes = decode_config(content, _RopesJson).rope_parameters or _LayerRopes()
    full = ropes.full_attention or json.rope_scaling or RopeJson()
    windowed = ropes.sliding_attention or RopeJson()
    context = json.max_position_embeddings
    config = _read(
        json,
        6,
        rotary=read_rope(full, full.rope_theta or json.rope_theta or 1e6, context),
        window_rotary=read_rope(
            windowed, windowed.rope_theta or json.rope_local_base_freq, context
        ),
        has_head_norm=True,
    )
    return _describe(config, prefix)


def describe_multimodal_gemma3(content: bytes) -> CausalNetwork:
    """The text part of a Gemma 3 that also sees; what it sees with is left unread."""
    return describe_gemma3(read_text_part(content), "language_model.model.")


def _read(json: _GemmaJson, pattern: int, **switches: Any) -> GemmaConfig:
    """The configuration; every layer of `pattern` but the last looks back by the window."""
    require_activation(json.hidden_activation or json.hidden_act, _TANH_GELU)
    if json.use_bidirectional_attention:
        raise CheckpointError("use_bidirectional_attention is not supported; only causal.")
    pattern = json.sliding_window_pattern or pattern
    require_positive(
        {
            "query_pre_attn_scalar": json.query_pre_attn_scalar,
            "attn_logit_softcapping": json.attn_logit_softcapping or 1,
            "final_logit_softcapping": json.final_logit_softcapping or 1,
            "sliding_window_pattern": pattern,
        }
    )
    layer_types = json.layer_types or tuple(
        "sliding_attention" if (layer + 1) % pattern else "full_attention"
        for layer in range(json.num_hidden_layers)
    )
    return read_decoder(
        json,
        read_reaches(json, layer_types, json.sliding_window),
        GemmaConfig,
        has_qkv_bias=json.attention_bias,
        has_o_bias=json.attention_bias,
        attention_scale=json.query_pre_attn_scalar**-0.5,
        attention_softcap=json.attn_logit_softcapping,
        logit_softcap=json.final_logit_softcapping,
        **switches,
    )


def _describe(config: GemmaConfig, prefix: str) -> CausalNetwork:
    """The network of that configuration."""
    return create_causal_network(
        config,
        list_parameters(config, prefix),
        list_ignored(config, prefix) | _LEFT_UNREAD,
        GemmaModel,
    )
