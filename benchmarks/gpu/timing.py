"""Times work on the device by its own clock, and names the device. Units: milliseconds."""

import subprocess
from collections.abc import Callable

import torch

_FLUSH_BYTES = 256 << 20
"""More than any cache holds: written between samples, so that each reads from memory."""


def measure_ms(
    work: Callable[[], object], num_samples: int = 20, *, flushes: bool = True
) -> list[float]:
    """The time of each of `num_samples` calls, after three that are not counted."""
    flush = torch.empty(_FLUSH_BYTES if flushes else 1, dtype=torch.int8, device="cuda")
    for _ in range(3):
        work()
    samples: list[float] = []
    for _ in range(num_samples):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end))
    return samples


def describe_device() -> str:
    """The GPU's name, memory and driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.strip() or torch.cuda.get_device_name()
