"""Whether this process computes with the kernels of the CPU path or with torch alone."""

import structlog
import torch

from gpu_pool.kernels.cpu.build import NativeUnavailableError, get_cache_folder
from gpu_pool.kernels.cpu.library import NativeKernels, load_kernels


def find_kernels(
    device: torch.device, dtype: torch.dtype, *, is_wanted: bool
) -> NativeKernels | None:
    """The kernels at the best level; None where torch computes alone, and why goes to the log.

    Models in fp32 are torch's: they are asked for the last digits, and peaked attention in another
    order of summation came to 1.7e-4 of a logit where 1e-4 is allowed.
    """
    if device.type != "cpu" or dtype != torch.bfloat16 or not is_wanted:
        return None
    try:
        return load_kernels(get_cache_folder())
    except NativeUnavailableError as error:
        structlog.get_logger().warning(
            "computing with torch alone, which is slower", reason=str(error)
        )
        return None
