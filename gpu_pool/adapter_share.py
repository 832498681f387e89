"""How much memory a model keeps for adapters where nobody says.

Read next: `gpu_pool.worker.worker`, which keeps it, and `gpu_pool.server.placement.model_size`,
which expects it.
"""

from typing import Final

_PART: Final = 16
"""Of the weights: three adapters of rank 64 for all products of a model of eight billion."""
_LEAST_BYTES: Final = 2 << 20
_MOST_BYTES: Final = 2 << 30


def choose_adapter_bytes(asked: int | None, weights_bytes: int) -> int:
    """What is kept: `asked`, else a part of what the weights take."""
    if asked is not None:
        return asked
    return min(max(weights_bytes // _PART, _LEAST_BYTES), _MOST_BYTES)
