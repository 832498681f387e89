"""What splits where when several GPUs share a Llama."""

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
    | parts.GATED_MLP
    | parts.MLP_BIAS
)
