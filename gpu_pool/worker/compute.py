"""What a worker computes in: dtype, threads, and a CPU's kernels of our own or torch alone."""

from typing import Final

import structlog
import torch

from gpu_pool.compute_choice import CpuLevel, DtypeChoice
from gpu_pool.cpu_share import count_own_threads
from gpu_pool.kernels.cpu.build import NativeUnavailableError, get_cache_folder
from gpu_pool.kernels.cpu.levels import find_level
from gpu_pool.kernels.cpu.library import NativeKernels, load_kernels
from gpu_pool.worker.model_loading import list_files
from gpu_pool.worker.settings import WorkerSettings

_SMALL_MODEL_BYTES: Final = 64 << 20
_COMPUTE_DTYPES: Final = {
    DtypeChoice.BFLOAT16: torch.bfloat16,
    DtypeChoice.FLOAT32: torch.float32,
}


def find_kernels(device: torch.device, dtype: torch.dtype, level: CpuLevel) -> NativeKernels | None:
    """The kernels at the best level up to `level`. None where torch computes alone; why goes to
    the log.

    Models in fp32 are torch's: they are asked for the last digits, and peaked attention in another
    order of summation came to 1.7e-4 of a logit where 1e-4 is allowed.
    """
    if device.type != "cpu" or dtype != torch.bfloat16:
        return None
    try:
        return load_kernels(get_cache_folder(), find_level(level))
    except NativeUnavailableError as error:
        structlog.get_logger().warning(
            "computing with torch alone, which is slower", reason=str(error)
        )
        return None


def choose_num_threads(settings: WorkerSettings) -> int:
    """What the settings say; else the default, or one alone for a model whose products end before
    a second thread has begun.

    Waiting for each other costs such a model more than sharing gains, above all where other
    processes want the cores: measured 4.1 ms a step with one thread and 45 with two on a busy box.
    """
    if settings.num_threads is not None:
        return settings.num_threads
    files = list_files(settings.model_dir)
    is_small = sum(path.stat().st_size for path in files) < _SMALL_MODEL_BYTES
    return 1 if is_small else settings.num_default_threads or count_own_threads()


def choose_dtype(choice: DtypeChoice, stored: torch.dtype) -> torch.dtype:
    """What to compute in; fp16 checkpoints widen to fp32, which loses nothing."""
    if choice is not DtypeChoice.AUTO:
        return _COMPUTE_DTYPES[choice]
    return torch.float32 if stored == torch.float16 else stored
