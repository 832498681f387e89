"""The `config.json` of Qwen2, Qwen3 and Qwen3 with experts."""

from gpu_pool.attention.reach import Reach
from gpu_pool.models.config_json import (
    DecoderJson,
    decode_config,
    read_decoder,
    read_reaches,
    require_activation,
    require_positive,
)
from gpu_pool.models.decoder_config import DecoderConfig, ExpertSizes
from gpu_pool.models.decoder_names import list_ignored
from gpu_pool.models.decoder_network import create_causal_network
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import CausalNetwork
from gpu_pool.models.qwen.model import create_model
from gpu_pool.models.qwen.names import list_parameters


class _QwenJson(DecoderJson, frozen=True):
    """Qwen's own fields."""

    attention_bias: bool = False
    use_sliding_window: bool = False
    max_window_layers: int = 0
    """Layers before it attend to everything, whatever the window."""


class _ExpertsJson(_QwenJson, frozen=True):
    """Those of Qwen3 with experts."""

    moe_intermediate_size: int = 0
    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()


def describe_qwen2(content: bytes) -> CausalNetwork:
    """A Qwen2. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _QwenJson)
    return _describe(read_decoder(json, _read_layers(json), has_qkv_bias=True), json)


def describe_qwen3(content: bytes) -> CausalNetwork:
    """A Qwen3. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _QwenJson)
    config = read_decoder(
        json,
        _read_layers(json),
        has_qkv_bias=json.attention_bias,
        has_o_bias=json.attention_bias,
        has_head_norm=True,
    )
    return _describe(config, json)


def describe_qwen3_moe(content: bytes) -> CausalNetwork:
    """A Qwen3 with experts. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _ExpertsJson)
    if json.use_sliding_window:
        raise CheckpointError("use_sliding_window is not supported beside experts.")
    config = read_decoder(
        json,
        read_reaches(json, None, None),
        has_qkv_bias=json.attention_bias,
        has_o_bias=json.attention_bias,
        has_head_norm=True,
        experts=_read_experts(json),
    )
    return _describe(config, json)


def _describe(config: DecoderConfig, json: _QwenJson) -> CausalNetwork:
    """The network of that configuration."""
    require_activation(json.hidden_act, "silu")
    return create_causal_network(
        config, list_parameters(config), list_ignored(config), create_model
    )


def _read_layers(json: _QwenJson) -> tuple[Reach, ...]:
    """How far each layer looks back."""
    if not json.use_sliding_window or json.sliding_window is None:
        return read_reaches(json, None, None)
    layer_types = json.layer_types or tuple(
        "sliding_attention" if layer >= json.max_window_layers else "full_attention"
        for layer in range(json.num_hidden_layers)
    )
    return read_reaches(json, layer_types, json.sliding_window)


def _read_experts(json: _ExpertsJson) -> ExpertSizes:
    """The experts, and the layers without."""
    num_experts = json.num_experts or json.num_local_experts or 0
    require_positive(
        {
            "num_experts": num_experts,
            "num_experts_per_tok": json.num_experts_per_tok,
            "moe_intermediate_size": json.moe_intermediate_size,
            "decoder_sparse_step": json.decoder_sparse_step,
        }
    )
    if json.num_experts_per_tok > num_experts:
        raise CheckpointError("num_experts_per_tok is more than there are experts.")
    dense = frozenset(
        layer
        for layer in range(json.num_hidden_layers)
        if layer in json.mlp_only_layers or (layer + 1) % json.decoder_sparse_step
    )
    return ExpertSizes(
        num_experts,
        json.num_experts_per_tok,
        json.moe_intermediate_size,
        json.norm_topk_prob,
        dense,
    )
