"""The `config.json` of Mistral and Mixtral."""

from gpu_pool.attention.reach import Reach
from gpu_pool.models.config_json import (
    DecoderJson,
    decode_config,
    read_decoder,
    read_reaches,
    read_rotary,
    require_activation,
    require_positive,
)
from gpu_pool.models.decoder_config import DecoderConfig, ExpertSizes
from gpu_pool.models.decoder_names import list_ignored
from gpu_pool.models.decoder_network import create_causal_network
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.mistral.model import create_model
from gpu_pool.models.mistral.names import list_parameters
from gpu_pool.models.network import CausalNetwork


class _MixtralJson(DecoderJson, frozen=True):
    """Mixtral's own fields."""

    num_local_experts: int = 8
    num_experts_per_tok: int = 2


def describe_mistral(content: bytes) -> CausalNetwork:
    """A Mistral. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, DecoderJson)
    if json.layer_types is not None:
        raise CheckpointError("layer_types is not supported; a Mistral's layers look back alike.")
    return _describe(read_decoder(json, _read_layers(json)), json)


def describe_mixtral(content: bytes) -> CausalNetwork:
    """A Mixtral. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _MixtralJson)
    require_positive(
        {
            "num_local_experts": json.num_local_experts,
            "num_experts_per_tok": json.num_experts_per_tok,
        }
    )
    if json.num_experts_per_tok > json.num_local_experts:
        raise CheckpointError("num_experts_per_tok is more than there are experts.")
    config = read_decoder(
        json,
        _read_layers(json),
        rotary=read_rotary(json, default_theta=1e6),
        experts=ExpertSizes(
            json.num_local_experts, json.num_experts_per_tok, json.intermediate_size
        ),
    )
    return _describe(config, json)


def _describe(config: DecoderConfig, json: DecoderJson) -> CausalNetwork:
    """The network of that configuration."""
    require_activation(json.hidden_act, "silu")
    return create_causal_network(
        config, list_parameters(config), list_ignored(config), create_model
    )


def _read_layers(json: DecoderJson) -> tuple[Reach, ...]:
    """All layers look back by the window, if there is one."""
    if json.sliding_window is None:
        return read_reaches(json, None, None)
    layer_types = ("sliding_attention",) * json.num_hidden_layers
    return read_reaches(json, layer_types, json.sliding_window)
