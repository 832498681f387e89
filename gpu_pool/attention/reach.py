"""How far back a token attends, as a function of its position alone.

Read next: `batch`, which makes masks of it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_pool.attention.kv_cache import Int64Array
from gpu_pool.plan import KvGroupKind


@dataclass(frozen=True, slots=True)
class Reach:
    """`num_tokens`: the window or chunk, the token itself included; None sees everything."""

    kind: KvGroupKind
    num_tokens: int | None = None

    def find_first(self, positions_X: Int64Array) -> Int64Array:
        """The first position that each token sees."""
        if self.num_tokens is None:
            return np.zeros_like(positions_X)
        if self.kind is KvGroupKind.CHUNKED:
            return positions_X - positions_X % self.num_tokens
        return np.maximum(positions_X - self.num_tokens + 1, 0)


FULL_REACH: Final = Reach(KvGroupKind.FULL)
