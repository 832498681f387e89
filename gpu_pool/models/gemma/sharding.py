"""What splits where when several GPUs share a Gemma."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpu_pool.models import decoder_sharding as parts
from gpu_pool.models.parameters import Split

SPLITS: Final[Mapping[str, Split]] = MappingProxyType(
    parts.EMBEDDINGS
    | {
        "input_norm": Split.WHOLE,
        "output_norm": Split.WHOLE,
        "mlp_input_norm": Split.WHOLE,
        "mlp_output_norm": Split.WHOLE,
    }
    | parts.ATTENTION
    | parts.QKV_BIAS
    | parts.O_BIAS
    | parts.HEAD_NORM
    | parts.GATED_MLP
)
