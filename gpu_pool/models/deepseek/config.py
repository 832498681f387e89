"""The `config.json` of DeepSeek-V2, DeepSeek-V3, Kimi K2 and, around one of these, Kimi K2.5."""

from gpu_pool.attention.reach import Reach
from gpu_pool.layers.latent_attention import LatentSizes
from gpu_pool.layers.routing import GroupLimit
from gpu_pool.models.config_json import (
    DecoderJson,
    compute_yarn_amplitude,
    decode_config,
    read_decoder,
    read_text_part,
    require_activation,
    require_positive,
)
from gpu_pool.models.decoder_config import ExpertSizes
from gpu_pool.models.decoder_network import create_causal_network
from gpu_pool.models.deepseek.model import DeepseekConfig, DeepseekRouting, create_model
from gpu_pool.models.deepseek.names import list_ignored, list_parameters
from gpu_pool.models.deepseek.sharding import share_config
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import CausalNetwork
from gpu_pool.plan import KvGroupKind


class _DeepseekJson(DecoderJson, frozen=True):
    """DeepSeek's own fields."""

    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    attention_bias: bool = False
    rope_interleave: bool = True
    n_routed_experts: int | None = None
    n_shared_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int = 0
    moe_layer_freq: int = 1
    first_k_dense_replace: int = 0
    n_group: int | None = None
    topk_group: int | None = None
    topk_method: str | None = None
    scoring_func: str | None = None
    norm_topk_prob: bool | None = None
    routed_scaling_factor: float = 1.0


def describe_v2(content: bytes) -> CausalNetwork:
    """A DeepSeek-V2. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _DeepseekJson)
    _require("scoring_func", json.scoring_func, "softmax")
    _require("topk_method", json.topk_method, "greedy", "group_limited_greedy")
    _require("norm_topk_prob", json.norm_topk_prob, False)
    limit = _read_groups(json) if json.topk_method == "group_limited_greedy" else None
    scale = json.routed_scaling_factor
    routing = DeepseekRouting(is_sigmoid=False, groups=limit, scale=scale)
    return _describe(json, routing, has_neighbouring_pairs=True)


def describe_v3(content: bytes, outer: str = "") -> CausalNetwork:
    """A DeepSeek-V3, whose tensors' names begin with `outer`.

    Raises: `CheckpointError` naming the field.
    """
    json = decode_config(content, _DeepseekJson)
    _require("scoring_func", json.scoring_func, "sigmoid")
    _require("topk_method", json.topk_method, "noaux_tc")
    scale = json.routed_scaling_factor
    routing = DeepseekRouting(is_sigmoid=True, groups=_read_groups(json), scale=scale)
    return _describe(json, routing, outer, has_neighbouring_pairs=json.rope_interleave)


def describe_kimi(content: bytes) -> CausalNetwork:
    """The text part of a Kimi that also sees (K2.5 and later), which is a DeepSeek-V3; what it sees
    with is left unread.
    """
    return describe_v3(read_text_part(content), "language_model.")


def _describe(
    json: _DeepseekJson,
    routing: DeepseekRouting,
    outer: str = "",
    *,
    has_neighbouring_pairs: bool,
) -> CausalNetwork:
    """The network with that way of choosing experts."""
    require_activation(json.hidden_act, "silu")
    _require("moe_layer_freq", json.moe_layer_freq, 1)
    sizes = {
        "kv_lora_rank": json.kv_lora_rank,
        "qk_nope_head_dim": json.qk_nope_head_dim,
        "qk_rope_head_dim": json.qk_rope_head_dim,
        "v_head_dim": json.v_head_dim,
        "q_lora_rank": 1 if json.q_lora_rank is None else json.q_lora_rank,
        "num_hidden_layers": json.num_hidden_layers,
    }
    require_positive(sizes)
    if json.qk_rope_head_dim % 2:
        raise CheckpointError(f"qk_rope_head_dim is {json.qk_rope_head_dim}; it must be even.")
    config = read_decoder(
        json,
        (Reach(KvGroupKind.MLA_LATENT),) * json.num_hidden_layers,
        DeepseekConfig,
        has_qkv_bias=json.attention_bias,
        has_o_bias=json.attention_bias,
        experts=_read_experts(json),
        query_rank=json.q_lora_rank,
        latents=LatentSizes(
            json.num_attention_heads,
            json.qk_nope_head_dim,
            json.qk_rope_head_dim,
            json.v_head_dim,
            json.kv_lora_rank,
        ),
        attention_scale=_compute_scale(json),
        has_neighbouring_pairs=has_neighbouring_pairs,
        num_shared_experts=json.n_shared_experts or 0,
        routing=routing,
    )
    return create_causal_network(
        config,
        list_parameters(config, outer),
        list_ignored(config, outer),
        create_model,
        share_config,
    )


def _compute_scale(json: _DeepseekJson) -> float:
    """What scores are multiplied by; more with YaRN."""
    scale = (json.qk_nope_head_dim + json.qk_rope_head_dim) ** -0.5
    rope = json.rope_parameters or json.rope_scaling
    if rope is None or (rope.type or rope.rope_type) == "default" or not rope.mscale_all_dim:
        return scale
    return scale * compute_yarn_amplitude(rope.factor or 1.0, rope.mscale_all_dim) ** 2


def _read_experts(json: _DeepseekJson) -> ExpertSizes | None:
    """The routed experts and the layers without, or None where all layers are dense."""
    if json.n_routed_experts is None:
        return None
    num_chosen = json.num_experts_per_tok or 0
    require_positive(
        {
            "n_routed_experts": json.n_routed_experts,
            "num_experts_per_tok": num_chosen,
            "moe_intermediate_size": json.moe_intermediate_size,
        }
    )
    if num_chosen > json.n_routed_experts:
        raise CheckpointError("num_experts_per_tok is more than there are experts.")
    return ExpertSizes(
        json.n_routed_experts,
        num_chosen,
        json.moe_intermediate_size,
        bool(json.norm_topk_prob),
        frozenset(range(min(json.first_k_dense_replace, json.num_hidden_layers))),
    )


def _read_groups(json: _DeepseekJson) -> GroupLimit | None:
    """The groups of experts, or None for one alone."""
    num_groups, num_chosen = json.n_group or 1, json.topk_group or 1
    if num_groups == 1 or json.n_routed_experts is None:
        return None
    if json.n_routed_experts % num_groups or not 0 < num_chosen <= num_groups:
        raise CheckpointError("n_group and topk_group do not divide the experts.")
    return GroupLimit(num_groups, num_chosen)


def _require(name: str, value: object, *known: object) -> None:
    """Raises for a value that the family does not compute; None stands for the usual one."""
    if value is not None and value not in known:
        raise CheckpointError(f"{name} `{value}` is not supported.")
