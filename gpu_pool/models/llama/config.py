"""A Llama's `config.json`."""

from gpu_pool.models.config_json import (
    DecoderJson,
    decode_config,
    read_decoder,
    read_reaches,
    require_activation,
)
from gpu_pool.models.decoder_names import list_ignored
from gpu_pool.models.decoder_network import create_causal_network
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.llama.model import create_model
from gpu_pool.models.llama.names import list_parameters
from gpu_pool.models.network import CausalNetwork


class _LlamaJson(DecoderJson, frozen=True):
    """Llama's own fields."""

    attention_bias: bool = False
    mlp_bias: bool = False


def describe(content: bytes) -> CausalNetwork:
    """The network. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _LlamaJson)
    require_activation(json.hidden_act, "silu")
    if json.sliding_window is not None:
        raise CheckpointError("config.json has `sliding_window`; a Llama attends to everything.")
    config = read_decoder(
        json,
        read_reaches(json, None, None),
        has_qkv_bias=json.attention_bias,
        has_o_bias=json.attention_bias,
        has_mlp_bias=json.mlp_bias,
    )
    return create_causal_network(
        config, list_parameters(config), list_ignored(config), create_model
    )
