"""What splits where when several GPUs share a gpt-oss: heads, and whole experts among ranks.

Experts are stored in one tensor per product, experts first, so that splitting by rows hands each
rank its own; a rank adds nothing for tokens that others compute.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpu_pool.models import decoder_sharding as parts
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
