"""The `config.json` of a gpt-oss."""

from gpu_pool.models.config_json import (
    DecoderJson,
    decode_config,
    read_decoder,
    read_reaches,
    read_rotary,
    require_activation,
    require_positive,
)
from gpu_pool.models.decoder_config import ExpertSizes
from gpu_pool.models.decoder_names import list_ignored
from gpu_pool.models.decoder_network import create_causal_network
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.gpt_oss.model import GptOssConfig, create_model
from gpu_pool.models.gpt_oss.names import list_parameters
from gpu_pool.models.gpt_oss.sharding import share_config
from gpu_pool.models.network import CausalNetwork


class _GptOssJson(DecoderJson, frozen=True):
    """gpt-oss's own fields."""

    num_local_experts: int = 0
    num_experts_per_tok: int = 4
    attention_bias: bool = True
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0


def describe(content: bytes) -> CausalNetwork:
    """The network. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _GptOssJson)
    require_activation(json.hidden_act, "silu")
    require_positive(
        {
            "num_local_experts": json.num_local_experts,
            "num_experts_per_tok": json.num_experts_per_tok,
            "swiglu_limit": json.swiglu_limit,
        }
    )
    if json.num_experts_per_tok > json.num_local_experts:
        raise CheckpointError("num_experts_per_tok is more than there are experts.")
    layer_types = json.layer_types or tuple(
        "full_attention" if layer % 2 else "sliding_attention"
        for layer in range(json.num_hidden_layers)
    )
    config = read_decoder(
        json,
        read_reaches(json, layer_types, json.sliding_window),
        GptOssConfig,
        rotary=read_rotary(json, default_theta=150_000.0),
        has_qkv_bias=json.attention_bias,
        has_o_bias=json.attention_bias,
        experts=ExpertSizes(
            json.num_local_experts, json.num_experts_per_tok, json.intermediate_size
        ),
        gate_alpha=json.swiglu_alpha,
        gate_limit=json.swiglu_limit,
    )
    return create_causal_network(
        config, list_parameters(config), list_ignored(config), create_model, share_config
    )
