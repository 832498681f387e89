"""What splits where when several GPUs share a Mistral or Mixtral."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpu_pool.models import decoder_sharding as parts
from gpu_pool.models.parameters import Split

SPLITS: Final[Mapping[str, Split]] = MappingProxyType(
    parts.EMBEDDINGS | parts.LAYER_NORMS | parts.ATTENTION | parts.GATED_MLP | parts.EXPERTS
)
