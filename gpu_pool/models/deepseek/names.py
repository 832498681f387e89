"""Which checkpoint tensors make up the parameters of a DeepSeek, by Hugging Face's names.

Where it is the text part of a model that sees, all its names begin with `language_model.`.
"""

from typing import Final

from gpu_pool.models import decoder_names as names
from gpu_pool.models.decoder_config import ExpertSizes
from gpu_pool.models.deepseek.model import DeepseekConfig
from gpu_pool.models.deepseek.sharding import SPLITS
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource

_OWN_PRODUCTS: Final = frozenset({"q_down", "shared_gate_up", "shared_down"})
"""What is turned into halves or taken into the queries is not among them."""
_SIGHT: Final = ("vision_tower.", "mm_projector.")
"""What a Kimi sees with."""
_EXPERTS: Final = names.ExpertNaming(
    router="mlp.gate.weight",
    experts="mlp.experts.",
    gate="gate_proj",
    up="up_proj",
    down="down_proj",
)


def list_parameters(config: DeepseekConfig, outer: str) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    shared = names.list_layer_norms(config) | _list_attention(config)
    dense = names.list_gated_mlp(config.hidden_size, config.intermediate_size)
    sparse = _list_experts(config, config.experts) if config.experts is not None else {}
    layers = [
        names.place_in_layer(
            layer, shared | (sparse if config.has_experts(layer) else dense), f"{outer}model."
        )
        for layer in range(config.num_layers)
    ]
    embeddings = names.list_embeddings(config, f"{outer}model.", f"{outer}lm_head.weight")
    return names.join_parts([embeddings, *layers], SPLITS, names.PRODUCTS | _OWN_PRODUCTS)


def list_ignored(config: DeepseekConfig, outer: str) -> frozenset[str]:
    """Tensors that are not needed: among them the layer that guesses further tokens, and what sees
    where the model is a part of one that does.
    """
    ignored = {f"{outer}model.layers.{config.num_layers}.", *(_SIGHT if outer else ())}
    return names.list_ignored(config, f"{outer}model.") | ignored


def _list_attention(config: DeepseekConfig) -> names.Parts:
    """Latent attention."""
    sizes, hidden = config.latents, config.hidden_size
    heads = sizes.num_heads
    q_rows = heads * (sizes.nope_dim + sizes.rope_dim)
    kv_rows = sizes.latent_size + sizes.rope_dim
    up_rows = heads * (sizes.nope_dim + sizes.value_dim)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "kv_down": ("kv_a_proj_with_mqa.weight", (kv_rows, hidden)),
        "kv_norm": ("kv_a_layernorm.weight", (sizes.latent_size,)),
        "kv_up": ("kv_b_proj.weight", (up_rows, sizes.latent_size)),
        "o": ("o_proj.weight", (hidden, heads * sizes.value_dim)),
    }
    if config.query_rank is None:
        tensors["q"] = ("q_proj.weight", (q_rows, hidden))
    else:
        tensors["q_down"] = ("q_a_proj.weight", (config.query_rank, hidden))
        tensors["q_norm"] = ("q_a_layernorm.weight", (config.query_rank,))
        tensors["q_up"] = ("q_b_proj.weight", (q_rows, config.query_rank))
    if config.has_qkv_bias:
        tensors["kv_down_bias"] = ("kv_a_proj_with_mqa.bias", (kv_rows,))
        tensors["o_bias"] = ("o_proj.bias", (hidden,))
        if config.query_rank is not None:
            tensors["q_down_bias"] = ("q_a_proj.bias", (config.query_rank,))
    return {
        name: (CheckpointTensor(f"self_attn.{tensor}", shape),)
        for name, (tensor, shape) in tensors.items()
    }


def _list_experts(config: DeepseekConfig, experts: ExpertSizes) -> names.Parts:
    """Routed experts, V3's bias, and what every token passes through."""
    found = names.list_experts(config.hidden_size, experts, _EXPERTS)
    if config.routing.is_sigmoid:
        bias = CheckpointTensor("mlp.gate.e_score_correction_bias", (experts.num_experts,))
        found["router_bias"] = (bias,)
    if config.num_shared_experts:
        size = experts.intermediate_size * config.num_shared_experts
        shared = names.list_gated_mlp(config.hidden_size, size, "mlp.shared_experts.")
        found |= {f"shared_{name}": tensors for name, tensors in shared.items()}
    return found
