"""What splits where when several GPUs share a layer: one table, by the parameter's last name.

Projections into heads or the intermediate size split by rows, those back by columns, so that a
layer needs two sums over ranks and no more. Biases behind a sum are kept whole (rank 0 adds them).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpu_pool.models.parameters import Split

SPLITS: Final[Mapping[str, Split]] = MappingProxyType(
    {
        "embedding": Split.WHOLE,
        "norm": Split.WHOLE,
        "head": Split.ROWS,
        "input_norm": Split.WHOLE,
        "qkv": Split.ROWS,
        "qkv_bias": Split.ROWS,
        "o": Split.COLUMNS,
        "o_bias": Split.WHOLE,
        "post_norm": Split.WHOLE,
        "gate_up": Split.ROWS,
        "gate_up_bias": Split.ROWS,
        "down": Split.COLUMNS,
        "down_bias": Split.WHOLE,
    }
)
