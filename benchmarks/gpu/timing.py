"""Times work on the device by its own clock; on a CPU, for rehearsals, by the process's.

Units: milliseconds, of wall time.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

IS_GPU: Final = torch.cuda.is_available()
DEVICE: Final = torch.device("cuda" if IS_GPU else "cpu")
"""Where kernels run: on a CPU in triton's interpreter."""
_FLUSH_BYTES = 256 << 20
"""More than any cache holds: written between samples, so that each reads from memory."""
_OTHER_BYTES = 200 << 20
"""So much is read between two calls that read the same, so that no cache serves them."""
_REHEARSED_SAMPLES = 2
_HEAD_START_CYCLES = 1_000_000
"""The device is kept busy for so long, half a millisecond, while the host launches what is timed:
of a short kernel it would else be the launch that is measured.
"""


def measure_ms(
    work: Callable[[], object], num_samples: int = 20, *, flushes: bool = True
) -> list[float]:
    """The time of each of `num_samples` calls, after three that are not counted."""
    if not IS_GPU:
        return [measure_s(work) * 1000 for _ in range(_REHEARSED_SAMPLES)]
    flush = torch.empty(_FLUSH_BYTES if flushes else 1, dtype=torch.int8, device="cuda")
    for _ in range(3):
        work()
    samples: list[float] = []
    for _ in range(num_samples):
        flush.zero_()
        torch.cuda._sleep(_HEAD_START_CYCLES)
        samples.append(_measure_once_ms(work))
    return samples


def measure_s(work: Callable[[], object]) -> float:
    """Seconds until `work` is done, the device waited for."""
    if IS_GPU:
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    work()
    if IS_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - began_s


def measure_chain_ms(calls: Sequence[Callable[[], object]], num_samples: int = 10) -> list[float]:
    """The time of one of `calls`, replayed one behind the other as the steps of a graph are.

    Calls that read other memory each keep one another's out of the cache.
    """
    if not IS_GPU:
        return [measure_s(calls[0]) * 1000 for _ in range(_REHEARSED_SAMPLES)]
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return [_measure_once_ms(graph.replay) / len(calls) for _ in range(num_samples)]


def count_copies(num_bytes: int, most: int = 32) -> int:
    """How many times something as large has to be there for the calls of a chain."""
    return max(2, min(most, -(-_OTHER_BYTES // num_bytes))) if IS_GPU else 1


def _measure_once_ms(work: Callable[[], object]) -> float:
    """By the device's clock, from what stood before `work` to its end."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)
