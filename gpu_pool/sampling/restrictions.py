"""What requests add to their logits, and which tokens grammars leave.

Nothing waits for the device. Shapes: R rows, V vocabulary.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_pool.kernels.device_values import send, to_device
from gpu_pool.kernels.token_mask import token_mask


def add_biases(logits_RV: Tensor, biases: Mapping[int, Sequence[tuple[int, float]]]) -> None:
    """Changes some rows in place; a token named twice gets both biases."""
    summed: dict[tuple[int, int], float] = {}
    for row, pairs in biases.items():
        for token_id, bias in pairs:
            summed[row, token_id] = summed.get((row, token_id), 0.0) + bias
    device = logits_RV.device
    rows, token_ids = to_device(list(zip(*summed, strict=True)), torch.int64, device)
    # No place is named twice, so that one addition each is the same in any order.
    logits_RV[rows, token_ids] += to_device(list(summed.values()), torch.float32, device)


def forbid_tokens(logits_RV: Tensor, allowed_tokens: Mapping[int, bytes]) -> None:
    """Makes impossible what the bits of some rows do not allow, in place."""
    device, vocab_size = logits_RV.device, logits_RV.shape[1]
    num_bytes = -(-vocab_size // 32) * 4
    for bits in allowed_tokens.values():
        assert len(bits) * 8 >= vocab_size, "the mask is shorter than the vocabulary"
    packed = b"".join(bits[:num_bytes].ljust(num_bytes, b"\0") for bits in allowed_tokens.values())
    words = np.frombuffer(packed, dtype=np.int32).reshape(len(allowed_tokens), -1).copy()
    rows = to_device(list(allowed_tokens), torch.int64, device)
    token_mask(logits_RV, rows, send(torch.from_numpy(words), device))
