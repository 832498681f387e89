"""What the machine does while something runs: use of the GPU, watts, CPU seconds, memory.

Must not know what runs. Read next: `gpu_pool.server.nvml`.
"""

import statistics
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import torch

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.harness import Figure, summarise
from gpu_pool.server.nvml import GpuFigures, open_gpus

_PERIOD_S: Final = 0.2
_HOUR_S: Final = 3600.0


@dataclass(slots=True)
class Watched:
    """What was seen. Units: seconds, bytes."""

    samples: list[GpuFigures] = field(default_factory=list[GpuFigures])
    """Of the first GPU; none without NVIDIA's driver."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of this process, all threads."""
    least_free_bytes: int | None = None
    """On the GPU, beside all that anybody holds."""


@contextmanager
def watch(bench: Bench, watched: Watched) -> Generator[None]:
    """Looks every 200 ms; what was seen is complete when the block ends."""
    is_over = threading.Event()
    gpus = open_gpus()

    def look() -> None:
        while not is_over.wait(_PERIOD_S):
            watched.samples += gpus.read()[:1]
            if bench.device == "cuda":
                free = torch.cuda.mem_get_info()[0]
                watched.least_free_bytes = min(free, watched.least_free_bytes or free)

    thread = threading.Thread(target=look, daemon=True)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    thread.start()
    try:
        yield
    finally:
        watched.cpu_s = time.process_time() - began_cpu_s
        watched.seconds = time.perf_counter() - began_s
        is_over.set()
        thread.join()


def describe_use(
    bench: Bench, watched: Watched, what: str, x: int, tokens_per_s: float
) -> list[Figure]:
    """CPU, GPU, watts and money of a run that generated so many tokens per second."""
    price = bench.price_per_hour / (tokens_per_s * _HOUR_S) * 1e6
    share = watched.cpu_s / watched.seconds
    figures = [
        summarise(what, OURS, "CPU of the engine", "cores", x, [share]),
        summarise(what, OURS, "CPU of the engine", "s", x, [watched.cpu_s]),
        summarise(
            what, OURS, f"price at {bench.price_per_hour:g} an hour", "per M tokens", x, [price]
        ),
    ]
    busy = [sample.busy for sample in watched.samples if sample.busy is not None]
    watts = [sample.power_watts for sample in watched.samples if sample.power_watts is not None]
    if busy:
        figures.append(summarise(what, OURS, "GPU in use", "%", x, [100 * part for part in busy]))
    if watts:
        energy = statistics.mean(watts) / tokens_per_s
        figures.append(summarise(what, OURS, "power", "W", x, watts))
        figures.append(summarise(what, OURS, "energy", "J/token", x, [energy]))
    if not busy or not watts:
        bench.notes.append("use and watts of the GPU need NVIDIA's driver (NVML)")
    return figures
