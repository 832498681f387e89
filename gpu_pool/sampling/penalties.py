"""Repetition, frequency and presence penalties.

Repetition (Hugging Face's) looks at prompt and output: positive logits are divided, negative ones
multiplied. Frequency and presence (OpenAI's) look at the output only and subtract.
Shapes: V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from contracts.inference import SamplingParams


class TokenCounts:
    """How often each token occurred in one sequence; kept only where penalties ask for it."""

    __slots__ = ("_output_V", "_seen_V")

    def __init__(
        self, prompt: Sequence[int], output: Sequence[int], vocab_size: int, device: torch.device
    ) -> None:
        """Counts what is known already; output is not empty after a preemption."""
        self._seen_V = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._seen_V[torch.tensor([*prompt, *output], dtype=torch.int64, device=device)] = True
        output_ids = torch.tensor(output, dtype=torch.int64, device=device)
        self._output_V = torch.bincount(output_ids, minlength=vocab_size)

    def add(self, token_id: int) -> None:
        """Counts one more token of output."""
        self._seen_V[token_id] = True
        self._output_V[token_id] += 1

    def penalise(self, logits_V: Tensor, sampling: SamplingParams) -> None:
        """Changes one row of logits in place."""
        if sampling.repetition_penalty != 1.0:
            factor = sampling.repetition_penalty
            penalised_V = torch.where(logits_V > 0, logits_V / factor, logits_V * factor)
            logits_V.copy_(torch.where(self._seen_V, penalised_V, logits_V))
        logits_V.sub_(self._output_V * sampling.frequency_penalty)
        logits_V.sub_((self._output_V > 0) * sampling.presence_penalty)
