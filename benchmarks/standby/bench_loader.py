"""Reading weights from the drive and from the host tier, beside what the drive gives at most.

    python -m benchmarks.standby.bench_loader                       # 2 GiB, three rounds
    python -m benchmarks.standby.bench_loader --mib 256 --rounds 2  # a short look

One file of 64 tensors is read by the loader as weights are that get packed, each dropped when the
next is there (`hearth`); by the same with digests compared (`hearth, compared`); by the best of
several numbers of threads that read it with O_DIRECT into buffers they use again (`raw`); and by
safetensors' own loader (`safetensors`). Rounds go through all of them in turn. Cold: the file is
dropped from the page cache first. Warm: it has just been read through the cache. At the end the
same bytes sleep and wake in memory, beside a load that keeps all of them.
Rows go to `results/standby_loader.csv`; quote the ratios, the machine may be shared.
"""

import argparse
import json
import os
import struct
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)
from gpu_pool.cpu_share import count_own_threads
from gpu_pool.large_pages import create_buffer
from gpu_pool.weights.checkpoint import SINGLE_FILE, Checkpoint
from gpu_pool.weights.cpu_memory import KeptMemory

OURS = "hearth"
NUM_TENSORS = 64
PIECE_BYTES = 8 << 20
RAW_THREADS = (2, 4, 8, 16)


def write_checkpoint(folder: Path, num_bytes: int) -> Path:
    """A file of random bf16 tensors, written to the drive."""
    size = num_bytes // NUM_TENSORS
    entries = {
        f"t{number:03}": {
            "dtype": "BF16",
            "shape": [size // 2],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(NUM_TENSORS)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # as safetensors' own writer does
    path = folder / SINGLE_FILE
    content = os.urandom(size)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(NUM_TENSORS):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def drop_from_cache(path: Path) -> None:
    """The next reader meets the drive."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill_cache(path: Path) -> None:
    """The next reader meets the cache."""
    with path.open("rb") as file:
        while file.read(PIECE_BYTES):
            pass


def read_ours(folder: Path, *, hashes: bool) -> None:
    """All tensors, each in memory of its own and dropped when the next is there."""
    with Checkpoint(folder, hashes=hashes) as checkpoint:
        names = list(checkpoint.shapes)
        checkpoint.expect(names)
        for name in names:
            checkpoint.read(name)


def keep_ours(folder: Path) -> None:
    """All tensors at once, as a model keeps them whose weights need no packing."""
    with Checkpoint(folder) as checkpoint:
        names = list(checkpoint.shapes)
        checkpoint.expect(names)
        held = [checkpoint.read(name) for name in names]
    del held


def read_raw(path: Path, num_threads: int) -> None:
    """The whole file into one buffer per thread."""
    file, size = os.open(path, os.O_RDONLY | os.O_DIRECT), path.stat().st_size
    with ThreadPoolExecutor(num_threads) as pool:

        def read(first: int) -> None:
            view = memoryview(create_buffer(PIECE_BYTES))
            for offset in range(first, size, num_threads * PIECE_BYTES):
                os.preadv(file, [view], offset)

        list(pool.map(read, range(0, num_threads * PIECE_BYTES, PIECE_BYTES)))
    os.close(file)


def read_safetensors(path: Path) -> None:
    """All tensors, their bytes touched: the library maps the file."""
    for tensor in load_file(path).values():
        tensor.clone()


def choose_raw_threads(path: Path) -> int:
    """The number of threads with which the drive is fastest."""
    rates: dict[int, float] = {}
    for num_threads in RAW_THREADS:
        drop_from_cache(path)
        rates[num_threads] = -measure_s(lambda n=num_threads: read_raw(path, n))
    return max(rates, key=rates.__getitem__)


def measure_s(work: Callable[[], object]) -> float:
    """Wall time."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def measure_tiers(num_bytes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of sleeps and of wakes of so many bytes."""
    size = num_bytes // NUM_TENSORS
    tensors = [torch.ones(size, dtype=torch.uint8) for _ in range(NUM_TENSORS)]
    memory = KeptMemory([tensors], count_own_threads())
    sleeps, wakes = [], []
    for _ in range(rounds):
        sleeps.append(measure_s(memory.leave))
        wakes.append(measure_s(memory.come_back))
    return sleeps, wakes


def measure(folder: Path, num_mib: int, rounds: int) -> list[Figure]:
    """All figures."""
    num_bytes = num_mib << 20
    path = write_checkpoint(folder, num_bytes)
    raw_threads = choose_raw_threads(path)
    readers: dict[str, Callable[[], object]] = {
        OURS: lambda: read_ours(folder, hashes=False),
        "raw": lambda: read_raw(path, raw_threads),
        f"{OURS}, compared": lambda: read_ours(folder, hashes=True),
        "safetensors": lambda: read_safetensors(path),
    }
    figures: list[Figure] = []
    for what, prepare in (("cold", drop_from_cache), ("warm", fill_cache)):
        samples: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(rounds):
            for name, read in readers.items():
                prepare(path)
                samples[name].append(num_bytes / measure_s(read) / 1e9)
        figures += [
            summarise(f"load {what}", name, "rate", "GB/s", num_mib, found)
            for name, found in samples.items()
        ]
    sleeps, wakes = measure_tiers(num_bytes, rounds)
    for metric, seconds in (("sleep", sleeps), ("wake", wakes)):
        rates = [num_bytes / value / 1e9 for value in seconds]
        figures.append(summarise("host tier", OURS, metric, "GB/s", num_mib, rates))
    wake = [num_bytes / value / 1e9 for value in wakes]
    figures.append(summarise("bring back", OURS, "rate", "GB/s", num_mib, wake))
    kept: list[float] = []
    for _ in range(rounds):
        drop_from_cache(path)
        kept.append(num_bytes / measure_s(lambda: keep_ours(folder)) / 1e9)
    figures.append(summarise("bring back", "load and keep", "rate", "GB/s", num_mib, kept))
    return figures


def main() -> None:
    """Measures, prints, appends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="on the drive to be measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        figures = measure(Path(name), options.mib, options.rounds)
    figures += compute_ratios(figures, OURS)
    print_figures(figures)
    circumstances = describe_circumstances(("torch", "safetensors"))
    print(append_figures("standby_loader.csv", figures, circumstances))


if __name__ == "__main__":
    main()
