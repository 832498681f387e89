"""Llama: token ids in, hidden states and logits out. Mathematics only.

Shapes: T tokens of a step, R rows that sample, V vocabulary, D hidden size, N query heads,
K KV heads, H head dim. Must not know files, sequences or sampling.
Read next: `gpu_pool.attention.paged`, then `names`.
"""

from torch import Tensor

from gpu_pool.attention.batch import AttentionBatch
from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.attention.paged import attend
from gpu_pool.kernels.add_rms_norm import add_rms_norm
from gpu_pool.kernels.rms_norm import rms_norm
from gpu_pool.kernels.rotary import rotary
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.rotary_embedding import RotaryEmbedding, compute_frequencies
from gpu_pool.models.llama.config import LlamaConfig
from gpu_pool.models.parameters import ReadParameter


class LlamaAttention:
    """Grouped-query attention with rotary positions; query, key and value in one product."""

    __slots__ = ("_head_dim", "_num_heads", "_num_kv_heads", "_o", "_qkv")

    def __init__(self, config: LlamaConfig, qkv: Linear, o: Linear) -> None:
        """Joins the two products."""
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._qkv = qkv
        self._o = o

    def __call__(
        self,
        layer: int,
        x_TD: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: KvCache,
        batch: AttentionBatch,
    ) -> Tensor:
        """The mixed states `[T, D]`."""
        num_tokens, num_turned = x_TD.shape[0], self._num_heads + self._num_kv_heads
        qkv = self._qkv(x_TD)
        heads_TXH = qkv.view(num_tokens, -1, self._head_dim)
        rotary(heads_TXH[:, :num_turned], *rotation)
        q_TNH = heads_TXH[:, : self._num_heads]
        kv_TE = qkv[:, self._num_heads * self._head_dim :]
        mixed_TNH = attend(layer, q_TNH, kv_TE, cache, batch)
        return self._o(mixed_TNH.view(num_tokens, -1))


class LlamaLayer:
    """Attention, then the feed-forward network, each behind a norm and added back."""

    __slots__ = ("attention", "input_norm_D", "mlp", "post_norm_D")

    def __init__(self, config: LlamaConfig, layer: int, read: ReadParameter) -> None:
        """Reads the layer's parameters."""

        def read_linear(name: str, has_bias: bool) -> Linear:
            bias = read(f"layers.{layer}.{name}_bias") if has_bias else None
            return Linear(read(f"layers.{layer}.{name}"), bias)

        self.input_norm_D = read(f"layers.{layer}.input_norm")
        self.attention = LlamaAttention(
            config,
            qkv=read_linear("qkv", config.has_attention_bias),
            o=read_linear("o", config.has_attention_bias),
        )
        self.post_norm_D = read(f"layers.{layer}.post_norm")
        self.mlp = GatedMlp(
            gate_up=read_linear("gate_up", config.has_mlp_bias),
            down=read_linear("down", config.has_mlp_bias),
        )


class LlamaModel:
    """The whole network."""

    def __init__(self, config: LlamaConfig, read: ReadParameter) -> None:
        """Reads all parameters, layer by layer, and packs them."""
        self._eps = config.rms_norm_eps
        self._embedding_VD = read("embedding")
        self._layers = [LlamaLayer(config, layer, read) for layer in range(config.num_layers)]
        self._norm_D = read("norm")
        self._head = Linear(read("head"))
        self._rotary = RotaryEmbedding(
            compute_frequencies(config.head_dim, config.rope_theta, config.rope_scaling),
            config.context_window,
            self._embedding_VD.dtype,
            self._embedding_VD.device,
        )

    def forward(
        self, token_ids_T: Tensor, positions_T: Tensor, cache: KvCache, batch: AttentionBatch
    ) -> Tensor:
        """The normed hidden states `[T, D]`; keys and values of all tokens are in the cache."""
        rotation = self._rotary(positions_T)
        residual_TD = self._embedding_VD.index_select(0, token_ids_T)
        x_TD = rms_norm(residual_TD, self._layers[0].input_norm_D, self._eps)
        next_norms = [layer.input_norm_D for layer in self._layers[1:]] + [self._norm_D]
        for index, (layer, next_norm_D) in enumerate(zip(self._layers, next_norms, strict=True)):
            x_TD = layer.attention(index, x_TD, rotation, cache, batch)
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, layer.post_norm_D, self._eps)
            x_TD = layer.mlp(x_TD)
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, next_norm_D, self._eps)
        return x_TD

    def compute_logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32."""
        return self._head(hidden_RD).float()
