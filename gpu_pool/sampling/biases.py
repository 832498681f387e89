"""What one sequence adds to its logits, laid out once: each of its steps only adds it.

Nothing waits for the device. Shapes: V vocabulary, N tokens with a bias. Read next: `sampler`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_pool.kernels.device_values import to_device


class Biases:
    """The biases of one sequence; a token named twice gets both."""

    __slots__ = ("_token_ids_N", "_values_N")

    def __init__(self, pairs: Sequence[tuple[int, float]], device: torch.device) -> None:
        """`pairs` of token id and bias: at least one."""
        summed: dict[int, float] = {}
        for token_id, bias in pairs:
            summed[token_id] = summed.get(token_id, 0.0) + bias
        self._token_ids_N = to_device(list(summed), torch.int64, device)
        self._values_N = to_device(list(summed.values()), torch.float32, device)

    def add_to(self, logits_V: Tensor) -> None:
        """Changes one row of logits in place."""
        # No token is named twice, so that one addition each is the same in any order.
        logits_V.index_add_(0, self._token_ids_N, self._values_N)
