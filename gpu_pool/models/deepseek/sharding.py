"""What splits where when several GPUs share a DeepSeek: heads and experts. Latents stay whole."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from gpu_pool.models import decoder_sharding as parts
from gpu_pool.models.deepseek.model import DeepseekConfig
from gpu_pool.models.parameters import Split

SPLITS: Final[Mapping[str, Split]] = MappingProxyType(
    parts.EMBEDDINGS
    | parts.LAYER_NORMS
    | parts.GATED_MLP
    | parts.EXPERTS
    | {
        "q": Split.ROWS,
        "q_down": Split.WHOLE,
        "q_down_bias": Split.WHOLE,
        "q_norm": Split.WHOLE,
        "q_up": Split.ROWS,
        "kv_down": Split.WHOLE,
        "kv_down_bias": Split.WHOLE,
        "kv_norm": Split.WHOLE,
        "kv_up": Split.ROWS,
        "o": Split.COLUMNS,
        "o_bias": Split.FIRST,
        "router_bias": Split.WHOLE,
        "shared_gate_up": Split.ROWS,
        "shared_down": Split.COLUMNS,
    }
)


def share_config(config: DeepseekConfig, num_ranks: int) -> DeepseekConfig:
    """What each of `num_ranks` computes of every layer: its own heads, over latents of all.

    Raises: `CheckpointError` where heads do not divide.
    """
    num_heads = config.latents.num_heads
    parts.refuse_uneven("query heads", num_heads, num_ranks)
    return replace(config, latents=replace(config.latents, num_heads=num_heads // num_ranks))
