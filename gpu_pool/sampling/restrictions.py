"""What a request adds to its logits, and which tokens a grammar leaves.

Shapes: V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from contracts.inference import SamplingParams


def add_biases(logits_V: Tensor, sampling: SamplingParams) -> None:
    """Changes one row of logits in place; a token named twice gets both biases."""
    ids, biases = zip(*sampling.logit_bias, strict=True)
    index = torch.tensor(ids, device=logits_V.device)
    logits_V.index_add_(0, index, torch.tensor(biases, device=logits_V.device))


def forbid_tokens(logits_V: Tensor, allowed_tokens: bytes) -> None:
    """Makes impossible what `allowed_tokens` has no bit for, in place."""
    bits = np.unpackbits(np.frombuffer(allowed_tokens, dtype=np.uint8), bitorder="little")
    assert bits.shape[0] >= logits_V.shape[0], "the mask is shorter than the vocabulary"
    is_forbidden_V = torch.from_numpy(bits[: logits_V.shape[0]] == 0)
    logits_V.masked_fill_(is_forbidden_V.to(logits_V.device), float("-inf"))
