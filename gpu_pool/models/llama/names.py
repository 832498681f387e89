"""Which checkpoint tensors make up the parameters of a Llama, by Hugging Face's names.

Must not know how they are read (`gpu_pool.weights`) or what they are for (`model`).
"""

from gpu_pool.models.llama.config import LlamaConfig
from gpu_pool.models.llama.sharding import SPLITS
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource


def list_parameters(config: LlamaConfig) -> dict[str, ParameterSource]:
    """Every parameter by the name that `LlamaModel` asks for."""
    embedding = CheckpointTensor(
        "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
    )
    head = CheckpointTensor("lm_head.weight", embedding.shape)
    norm = CheckpointTensor("model.norm.weight", (config.hidden_size,))
    parameters = {
        "embedding": _source("embedding", embedding),
        "norm": _source("norm", norm),
        "head": _source("head", embedding if config.has_tied_embeddings else head),
    }
    for layer in range(config.num_layers):
        parameters.update(_list_layer(config, layer))
    return parameters


def list_ignored(config: LlamaConfig) -> frozenset[str]:
    """Tensors that some checkpoints hold and the network does not need."""
    ignored = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.num_layers)}
    if config.has_tied_embeddings:
        ignored.add("lm_head.weight")
    return frozenset(ignored)


def _list_layer(config: LlamaConfig, layer: int) -> dict[str, ParameterSource]:
    """The parameters of one layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = (("q_proj", heads), ("k_proj", kv), ("v_proj", kv))
    gate_up = (("gate_proj", inner), ("up_proj", inner))
    found: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
        "input_norm": (("input_layernorm.weight", (hidden,)),),
        "qkv": tuple((f"self_attn.{name}.weight", (rows, hidden)) for name, rows in qkv),
        "o": (("self_attn.o_proj.weight", (hidden, heads)),),
        "post_norm": (("post_attention_layernorm.weight", (hidden,)),),
        "gate_up": tuple((f"mlp.{name}.weight", (rows, hidden)) for name, rows in gate_up),
        "down": (("mlp.down_proj.weight", (hidden, inner)),),
    }
    if config.has_attention_bias:
        found["qkv_bias"] = tuple((f"self_attn.{name}.bias", (rows,)) for name, rows in qkv)
        found["o_bias"] = (("self_attn.o_proj.bias", (hidden,)),)
    if config.has_mlp_bias:
        found["gate_up_bias"] = tuple((f"mlp.{name}.bias", (rows,)) for name, rows in gate_up)
        found["down_bias"] = (("mlp.down_proj.bias", (hidden,)),)
    prefix = f"model.layers.{layer}."
    return {
        f"layers.{layer}.{name}": _source(
            name, *(CheckpointTensor(prefix + part, shape) for part, shape in parts)
        )
        for name, parts in found.items()
    }


def _source(name: str, *parts: CheckpointTensor) -> ParameterSource:
    """The source of a parameter whose last name is `name`."""
    return ParameterSource(parts, SPLITS[name])
