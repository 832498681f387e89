"""Split as the table says, a layer's halves sum to the whole."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span, create_attention_batch
from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.layers.rotary_embedding import RotaryEmbedding, compute_frequencies
from gpu_pool.models.llama.config import LlamaConfig
from gpu_pool.models.llama.model import LlamaLayer
from gpu_pool.models.llama.names import list_parameters
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.config import read_config
from gpu_pool.weights.reader import ParameterReader
from tests.gpu_pool.tiny_llama import write_tiny_llama

CPU = torch.device("cpu")


def run_layer(
    config: LlamaConfig, reader: ParameterReader, rank: int, world_size: int, x_TD: Tensor
) -> tuple[Tensor, Tensor]:
    """What one rank's share of attention and of the feed-forward network returns."""
    local = replace(
        config,
        num_heads=config.num_heads // world_size,
        num_kv_heads=config.num_kv_heads // world_size,
    )
    layer = LlamaLayer(local, 0, partial(reader.read, rank=rank, world_size=world_size))
    cache = KvCache(KvShape(1, 64, local.num_kv_heads, config.head_dim), 1, x_TD.dtype, CPU)
    num_tokens = x_TD.shape[0]
    batch = create_attention_batch([Span(0, num_tokens, np.zeros(1, dtype=np.int64))], cache)
    frequencies = compute_frequencies(config.head_dim, config.rope_theta, None)
    rotation = RotaryEmbedding(frequencies, 64, x_TD.dtype, CPU)(torch.arange(num_tokens))
    return layer.attention(0, x_TD, rotation, cache, batch), layer.mlp(x_TD)


def test_the_halves_of_a_layer_sum_to_the_whole(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    config = read_config(tmp_path).llama
    with torch.inference_mode(), Checkpoint(tmp_path) as checkpoint:
        reader = ParameterReader(
            checkpoint, list_parameters(config), frozenset(), dtype=torch.float32, device=CPU
        )
        x_TD = torch.randn(10, config.hidden_size)
        whole = run_layer(config, reader, 0, 1, x_TD)
        halves = [run_layer(config, reader, rank, 2, x_TD) for rank in (0, 1)]
        for part, expected in enumerate(whole):
            assert (halves[0][part] + halves[1][part] - expected).abs().max() < 1e-4
            assert (halves[0][part] - expected).abs().max() > 1e-2  # one half alone is not it
