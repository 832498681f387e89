"""The `config.json` of a Llama 4, alone or as the text part of one that sees."""

import msgspec

from gpu_pool.attention.reach import Reach
from gpu_pool.models.config_json import (
    DecoderJson,
    decode_config,
    read_decoder,
    read_reaches,
    read_rotary,
    read_text_part,
    require_activation,
    require_positive,
)
from gpu_pool.models.decoder_config import ExpertSizes
from gpu_pool.models.decoder_names import list_ignored
from gpu_pool.models.decoder_network import create_causal_network
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.llama4.attention import Llama4Config, Sharpening
from gpu_pool.models.llama4.model import create_model
from gpu_pool.models.llama4.names import list_parameters
from gpu_pool.models.llama4.sharding import share_config
from gpu_pool.models.network import CausalNetwork


class _Llama4Json(DecoderJson, frozen=True):
    """Llama 4's own fields."""

    intermediate_size_mlp: int = 0
    """Of dense layers; `intermediate_size` is that of an expert."""
    num_local_experts: int = 0
    num_experts_per_tok: int = 1
    interleave_moe_layer_step: int = 1
    moe_layers: tuple[int, ...] | None = None
    attention_chunk_size: int | None = 8192
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    use_qk_norm: bool = True
    attn_temperature_tuning: bool = True
    floor_scale: float = 8192
    attn_scale: float = 0.1
    attention_bias: bool = False


def describe(content: bytes, outer: str = "") -> CausalNetwork:
    """The network. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _Llama4Json)
    _check(json)
    turned = _list_turned(json)
    config = read_decoder(
        # A dense layer's size is the one that decoders know by this name.
        msgspec.structs.replace(json, intermediate_size=json.intermediate_size_mlp),
        _read_layers(json, turned),
        Llama4Config,
        rotary=read_rotary(json, default_theta=500_000.0),
        has_qkv_bias=json.attention_bias,
        has_o_bias=json.attention_bias,
        experts=_read_experts(json),
        layers_without_positions=frozenset(range(json.num_hidden_layers)) - turned,
        norms_turned_heads=json.use_qk_norm,
        sharpening=_read_sharpening(json),
    )
    return create_causal_network(
        config,
        list_parameters(config, outer),
        list_ignored(config, f"{outer}model.") | {"vision_model.", "multi_modal_projector."},
        create_model,
        share_config,
    )


def describe_multimodal(content: bytes) -> CausalNetwork:
    """The text part of a Llama 4 that also sees; what it sees with is left unread."""
    return describe(read_text_part(content), "language_model.")


def _check(json: _Llama4Json) -> None:
    """Raises for what this family does not compute."""
    require_activation(json.hidden_act, "silu")
    require_positive(
        {
            "num_hidden_layers": json.num_hidden_layers,
            "intermediate_size_mlp": json.intermediate_size_mlp,
            "num_local_experts": json.num_local_experts,
            "num_experts_per_tok": json.num_experts_per_tok,
            "interleave_moe_layer_step": json.interleave_moe_layer_step,
            "no_rope_layer_interval": json.no_rope_layer_interval,
            "floor_scale": json.floor_scale,
        }
    )
    if json.num_experts_per_tok > json.num_local_experts:
        raise CheckpointError("num_experts_per_tok is more than there are experts.")


def _list_turned(json: _Llama4Json) -> frozenset[int]:
    """The layers that know positions: by a flag each, or all but every so many."""
    flags = json.no_rope_layers or tuple(
        (layer + 1) % json.no_rope_layer_interval for layer in range(json.num_hidden_layers)
    )
    if len(flags) != json.num_hidden_layers:
        raise CheckpointError("no_rope_layers names another number of layers than there are.")
    return frozenset(layer for layer, is_turned in enumerate(flags) if is_turned)


def _read_layers(json: _Llama4Json, turned: frozenset[int]) -> tuple[Reach, ...]:
    """Layers that know positions attend within chunks, unless it is said otherwise."""
    layer_types = json.layer_types or tuple(
        "chunked_attention" if layer in turned else "full_attention"
        for layer in range(json.num_hidden_layers)
    )
    return read_reaches(json, layer_types, json.attention_chunk_size)


def _read_experts(json: _Llama4Json) -> ExpertSizes:
    """The experts and the layers without."""
    step = json.interleave_moe_layer_step
    sparse = range(step - 1, json.num_hidden_layers, step)
    chosen = frozenset(sparse if json.moe_layers is None else json.moe_layers)
    return ExpertSizes(
        json.num_local_experts,
        json.num_experts_per_tok,
        json.intermediate_size,
        dense_layers=frozenset(range(json.num_hidden_layers)) - chosen,
    )


def _read_sharpening(json: _Llama4Json) -> Sharpening | None:
    """How queries grow with length, if they do."""
    return Sharpening(json.floor_scale, json.attn_scale) if json.attn_temperature_tuning else None
