"""Which tokens grammars leave.

Nothing waits for the device. Shapes: R rows, V vocabulary.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from gpu_pool.kernels.device_values import send, to_device
from gpu_pool.kernels.token_mask import token_mask


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
