"""What kernel tests share: where kernels run, and the dtypes that run there."""

import pytest
import torch

from gpu_pool.kernels.triton_language import HAS_TRITON

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies bf16 wrongly; on a GPU bf16 is the dtype that counts.
PRODUCT_DTYPES = (torch.float32, torch.bfloat16 if DEVICE == "cuda" else torch.float16)
needs_triton = pytest.mark.skipif(
    not HAS_TRITON, reason="triton exists for Linux only; the references are tested everywhere"
)
