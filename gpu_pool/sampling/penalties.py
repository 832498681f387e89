"""How often tokens occurred in a sequence, for the penalties that look at it.

Shapes: V vocabulary, N tokens. Read next: `gpu_pool.kernels.penalise`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.kernels.device_values import send, to_device
from gpu_pool.kernels.penalise import Penalties, penalise


class TokenCounts:
    """How often each token occurred in one sequence; kept only where penalties ask for it."""

    __slots__ = ("_is_seen_V", "_output_V")

    def __init__(
        self, prompt: Sequence[int], output: Sequence[int], vocab_size: int, device: torch.device
    ) -> None:
        """Counts what is known already; output is not empty after a preemption."""
        output_V = np.bincount(np.array(output, dtype=np.int64), minlength=vocab_size)
        is_seen_V = output_V > 0
        is_seen_V[np.array(prompt, dtype=np.int64)] = True
        self._is_seen_V = send(torch.from_numpy(is_seen_V), device)
        self._output_V = send(torch.from_numpy(output_V.astype(np.int32)), device)

    def add(self, token_id: int) -> None:
        """Counts one more token of output."""
        self.add_drawn(to_device([token_id], torch.int64, self._output_V.device))

    def add_drawn(self, token_ids_N: Tensor) -> None:
        """Counts tokens of output that may still be on their way, int64 on the device."""
        self._is_seen_V.index_fill_(0, token_ids_N, True)
        ones_N = torch.ones_like(token_ids_N, dtype=torch.int32)
        self._output_V.index_add_(0, token_ids_N, ones_N)

    def penalise(self, logits_V: Tensor, sampling: SamplingParams) -> None:
        """Changes one row of logits in place."""
        penalties = Penalties(
            sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
        )
        penalise(logits_V, self._is_seen_V, self._output_V, penalties)
