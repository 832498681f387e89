"""What splits where when several GPUs share a BERT: heads and intermediate size, as in decoders."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpu_pool.models.parameters import Split

SPLITS: Final[Mapping[str, Split]] = MappingProxyType(
    {
        "words": Split.WHOLE,
        "positions": Split.WHOLE,
        "types": Split.WHOLE,
        "norm": Split.WHOLE,
        "norm_bias": Split.WHOLE,
        "qkv": Split.ROWS,
        "qkv_bias": Split.ROWS,
        "o": Split.COLUMNS,
        "o_bias": Split.WHOLE,
        "attention_norm": Split.WHOLE,
        "attention_norm_bias": Split.WHOLE,
        "up": Split.ROWS,
        "up_bias": Split.ROWS,
        "down": Split.COLUMNS,
        "down_bias": Split.WHOLE,
        "output_norm": Split.WHOLE,
        "output_norm_bias": Split.WHOLE,
        "head": Split.WHOLE,
        "head_bias": Split.WHOLE,
        "labels": Split.WHOLE,
        "labels_bias": Split.WHOLE,
    }
)
