"""The checkpoint tensors of a decoder's usual parts, by the names most checkpoints give them.

Each function lists one part: its parameters' last names, and the tensors that make them up, without
the layer's prefix. `list_parameters` of a family joins the parts it has.
Read next: `llama.names`, then `decoder_sharding`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpu_pool.models.decoder_config import DecoderConfig, ExpertSizes
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split

PRODUCTS: Final = frozenset({"qkv", "o", "gate_up", "down", "expert_gate_up", "expert_down"})
"""Parameters that layers only multiply with, as they are stored."""
Parts = dict[str, tuple[CheckpointTensor, ...]]
"""Parameter to tensors."""


def list_embeddings(
    config: DecoderConfig, prefix: str = "model.", head_name: str = "lm_head.weight"
) -> Parts:
    """What stands before and behind the layers."""
    shape = (config.vocab_size, config.hidden_size)
    embedding = CheckpointTensor(f"{prefix}embed_tokens.weight", shape)
    head = CheckpointTensor(head_name, shape)
    return {
        "embedding": (embedding,),
        "norm": (CheckpointTensor(f"{prefix}norm.weight", (config.hidden_size,)),),
        "head": (embedding if config.has_tied_embeddings else head,),
    }


def list_layer_norms(config: DecoderConfig) -> Parts:
    """The norms before attention and before the feed-forward network."""
    shape = (config.hidden_size,)
    return {
        "input_norm": (CheckpointTensor("input_layernorm.weight", shape),),
        "post_norm": (CheckpointTensor("post_attention_layernorm.weight", shape),),
    }


def list_attention(config: DecoderConfig) -> Parts:
    """Grouped-query attention, with the biases and norms it has."""
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = {"q": (heads, None), "k": (kv, config.num_kv_heads), "v": (kv, config.num_kv_heads)}

    def list_qkv(kind: str, *columns: int) -> tuple[CheckpointTensor, ...]:
        return tuple(
            CheckpointTensor(f"self_attn.{name}_proj.{kind}", (size, *columns), num_heads)
            for name, (size, num_heads) in rows.items()
        )

    found: Parts = {
        "qkv": list_qkv("weight", config.hidden_size),
        "o": (CheckpointTensor("self_attn.o_proj.weight", (config.hidden_size, heads)),),
    }
    if config.has_qkv_bias:
        found["qkv_bias"] = list_qkv("bias")
    if config.has_o_bias:
        found["o_bias"] = (CheckpointTensor("self_attn.o_proj.bias", (config.hidden_size,)),)
    if config.has_head_norm:
        for name in ("q_norm", "k_norm"):
            tensor = CheckpointTensor(f"self_attn.{name}.weight", (config.head_dim,))
            found[name] = (tensor,)
    return found


def list_gated_mlp(
    hidden_size: int, intermediate_size: int, prefix: str = "mlp.", has_bias: bool = False
) -> Parts:
    """A dense feed-forward network."""
    shape = (intermediate_size, hidden_size)
    gate_up = ("gate_proj", "up_proj")
    found: Parts = {
        "gate_up": tuple(CheckpointTensor(f"{prefix}{name}.weight", shape) for name in gate_up),
        "down": (CheckpointTensor(f"{prefix}down_proj.weight", shape[::-1]),),
    }
    if has_bias:
        found["gate_up_bias"] = tuple(
            CheckpointTensor(f"{prefix}{name}.bias", shape[:1]) for name in gate_up
        )
        found["down_bias"] = (CheckpointTensor(f"{prefix}down_proj.bias", shape[1:]),)
    return found


@dataclass(frozen=True, slots=True)
class ExpertNaming:
    """How a checkpoint calls the tensors of experts that it holds one by one."""

    router: str
    experts: str
    """What stands before an expert's number."""
    gate: str
    up: str
    down: str


def list_experts(hidden_size: int, experts: ExpertSizes, naming: ExpertNaming) -> Parts:
    """A router and experts, whose products are read one below the other."""
    shape = (experts.intermediate_size, hidden_size)

    def list_each(*products: str, shape: tuple[int, ...]) -> tuple[CheckpointTensor, ...]:
        return tuple(
            CheckpointTensor(f"{naming.experts}{expert}.{product}.weight", shape)
            for expert in range(experts.num_experts)
            for product in products
        )

    router = CheckpointTensor(naming.router, (experts.num_experts, hidden_size))
    return {
        "router": (router,),
        "expert_gate_up": list_each(naming.gate, naming.up, shape=shape),
        "expert_down": list_each(naming.down, shape=shape[::-1]),
    }


def list_decoder(
    config: DecoderConfig, splits: Mapping[str, Split], naming: ExpertNaming | None = None
) -> dict[str, ParameterSource]:
    """Every parameter of a decoder whose parts are all of the usual kind."""
    shared = list_layer_norms(config) | list_attention(config)
    dense = list_gated_mlp(
        config.hidden_size, config.intermediate_size, has_bias=config.has_mlp_bias
    )
    sparse: Parts = {}
    if config.experts is not None and naming is not None:
        sparse = list_experts(config.hidden_size, config.experts, naming)
    layers = [
        place_in_layer(layer, shared | (sparse if config.has_experts(layer) else dense))
        for layer in range(config.num_layers)
    ]
    return join_parts([list_embeddings(config), *layers], splits, PRODUCTS)


def place_in_layer(layer: int, parts: Parts, prefix: str = "model.") -> Parts:
    """`parts` as those of one layer, by their full names."""
    return {
        f"layers.{layer}.{name}": tuple(
            replace(tensor, name=f"{prefix}layers.{layer}.{tensor.name}") for tensor in tensors
        )
        for name, tensors in parts.items()
    }


def join_parts(
    parts: Iterable[Parts], splits: Mapping[str, Split], products: frozenset[str] = frozenset()
) -> dict[str, ParameterSource]:
    """All parameters, each with the split of its last name; `products` are last names, too."""

    def describe(tensors: tuple[CheckpointTensor, ...], last: str) -> ParameterSource:
        return ParameterSource(tensors, splits[last], last in products)

    return {
        name: describe(tensors, name.rpartition(".")[2])
        for part in parts
        for name, tensors in part.items()
    }


def list_ignored(config: DecoderConfig, prefix: str = "model.") -> frozenset[str]:
    """Tensors that some checkpoints hold and the network does not need."""
    ignored = {
        f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.num_layers)
    }
    if config.has_tied_embeddings:
        ignored |= {"lm_head.weight", f"{prefix.removesuffix('model.')}lm_head.weight"}
    return frozenset(ignored)
