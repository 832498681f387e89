"""Split as the table says, a layer's halves sum to the whole."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span, create_attention_batch
from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.attention.paged import PagedStep
from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.rotary_embedding import RotaryForm, create_rotary_embedding
from gpu_pool.models.config_json import DecoderJson, decode_config, read_decoder, read_reaches
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_parts import create_attention, create_gated_mlp
from gpu_pool.models.llama.names import list_parameters
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.reader import ParameterReader
from tests.gpu_pool.models.family_checkpoint import write_checkpoint

CPU = torch.device("cpu")


def run_layer(
    config: DecoderConfig, reader: ParameterReader, rank: int, world_size: int, x_TD: Tensor
) -> tuple[Tensor, Tensor]:
    """What one rank's share of attention and of the feed-forward network returns."""
    local = replace(
        config,
        num_heads=config.num_heads // world_size,
        num_kv_heads=config.num_kv_heads // world_size,
    )
    read = partial(reader.read, rank=rank, world_size=world_size)
    attention, mlp = create_attention(local, 0, read), create_gated_mlp(local, 0, read)
    cache = KvCache(KvShape(1, 64, local.num_kv_heads, config.head_dim), 1, x_TD.dtype, CPU)
    positions = torch.arange(x_TD.shape[0])
    span = Span(0, x_TD.shape[0], np.zeros(1, dtype=np.int64))
    rotation = create_rotary_embedding(RotaryForm(1e4), config.head_dim, 64, x_TD)(positions)
    group = PagedStep(cache, create_attention_batch([span], cache))
    return attention(x_TD, DecoderStep(positions, (rotation,), (group,))), mlp(x_TD)


def test_the_halves_of_a_layer_sum_to_the_whole(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama")
    json = decode_config((folder / "config.json").read_bytes(), DecoderJson)
    config = read_decoder(json, read_reaches(json, None, None))
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        reader = ParameterReader(
            checkpoint,
            list_parameters(config),
            frozenset(),
            dtype=torch.float32,
            put=lambda tensor: tensor,
        )
        x_TD = torch.randn(10, config.hidden_size)
        whole = run_layer(config, reader, 0, 1, x_TD)
        halves = [run_layer(config, reader, rank, 2, x_TD) for rank in (0, 1)]
        for part, expected in enumerate(whole):
            assert (halves[0][part] + halves[1][part] - expected).abs().max() < 1e-4
            assert (halves[0][part] - expected).abs().max() > 1e-2  # one half alone is not it
