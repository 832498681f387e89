"""The sizes and switches of a Llama network, already validated (`gpu_pool.weights.config`)."""

from dataclasses import dataclass

from gpu_pool.layers.rotary_embedding import Llama3Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """What the mathematics depends on. `context_window` in tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_window: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    has_tied_embeddings: bool
    has_attention_bias: bool
    has_mlp_bias: bool
