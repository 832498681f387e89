"""What splits where when several GPUs share a gpt-oss: heads, and whole experts among ranks.

Experts are stored in one tensor per product, experts first, so that splitting by rows hands each
rank its own; a rank adds nothing for tokens that others compute.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpu_pool.models import decoder_sharding as parts
from gpu_pool.models.gpt_oss.model import GptOssConfig
from gpu_pool.models.parameters import Split

SPLITS: Final[Mapping[str, Split]] = MappingProxyType(
    parts.EMBEDDINGS
    | parts.LAYER_NORMS
    | parts.ATTENTION
    | parts.QKV_BIAS
    | parts.O_BIAS
    | {
        "sinks": Split.ROWS,
        "router": Split.WHOLE,
        "router_bias": Split.WHOLE,
        "expert_gate_up": Split.ROWS,
        "expert_gate_up_bias": Split.ROWS,
        "expert_down": Split.ROWS,
        "expert_down_bias": Split.ROWS,
    }
)


def share_config(config: GptOssConfig, num_ranks: int) -> GptOssConfig:
    """What each of `num_ranks` computes of every layer: its own heads, and whole experts.

    Raises: `CheckpointError` where they do not divide.
    """
    if config.experts is not None:
        parts.refuse_uneven("experts", config.experts.num_experts, num_ranks)
    return parts.share_heads(config, num_ranks)
