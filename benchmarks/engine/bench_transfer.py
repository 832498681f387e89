"""GB/s between two transfer agents on this machine, by engine, way and size of blocks.

An engine that falls silently to a slow path is far below its floor, and the exit status says so.
The control is Mooncake without its pool of connections, which has to be below. The figures that
count are ratios to copying the same memory within one process.
Run: `python -m benchmarks.engine.bench_transfer [--rounds 5] [--record]`.
"""

import argparse
import mmap
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from gpu_pool.plan import HostMemory
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.agent_words import AgentReady
from gpu_pool.transfer.transfer_engine import MAX_BATCH, Piece
from gpu_pool.transfer_settings import TransferSettings

_SIZE_BYTES: Final = 128 << 20
_BLOCK_BYTES: Final = (64 << 10, 256 << 10, 1 << 20)
_FLOOR_BLOCK_BYTES: Final = 256 << 10
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Way:
    """An engine, and what its library is told."""

    name: str
    engine: Literal["nixl", "mooncake"]
    environ: dict[str, str]
    floor_gb_per_s: float
    """With blocks of 256 KiB on two quiet cores; reads by TCP are half as fast as writes."""
    is_control: bool = False
    """The slow path: it is to be below."""


WAYS: Final = (
    Way("nixl", "nixl", {"UCX_TLS": "all"}, 1.0),
    Way("nixl, TCP", "nixl", {"UCX_TLS": "tcp"}, 0.5),
    Way("mooncake, TCP", "mooncake", {}, 0.5),
    Way("mooncake without pool", "mooncake", {"MC_TCP_ENABLE_CONNECTION_POOL": "0"}, 0.5, True),
)


@dataclass(frozen=True)
class End:
    """An agent that is ready, and its memory."""

    client: AgentClient
    ready: AgentReady
    buffer: memoryview
    wake: int
    """A file handle at which nothing ever comes."""
    name: str


@contextmanager
def open_end(engine: Literal["nixl", "mooncake"], name: str) -> Iterator[End]:
    """One end of the way. Raises: `RuntimeError` when the engine does not start."""
    handle = os.memfd_create(name)
    os.ftruncate(handle, _SIZE_BYTES)
    buffer = memoryview(mmap.mmap(handle, _SIZE_BYTES))
    client = AgentClient(
        TransferSettings(engine=engine), name, [HostMemory(buffer, _SIZE_BYTES, handle)]
    )
    reader, writer = os.pipe()
    client.start()
    until_s = time.monotonic() + _PATIENCE_S
    try:
        while client.ready is None:
            client.wait(reader, 1.0)
            if not client.is_alive or time.monotonic() > until_s:
                raise RuntimeError(f"{engine} does not start")
        yield End(client, client.ready, buffer, reader, name)
    finally:
        client.close()
        for each in (reader, writer, handle):
            os.close(each)


def read_all(own: End, other: End, block_bytes: int) -> float:
    """GB/s at which one end reads all of the other's memory. Raises: `RuntimeError`."""
    pieces = [
        Piece(own.ready.addresses[0] + start, other.ready.addresses[0] + start, block_bytes)
        for start in range(0, _SIZE_BYTES, block_bytes)
    ]
    began_s = time.perf_counter()
    num_left = 0
    for first in range(0, len(pieces), MAX_BATCH):
        batch = pieces[first : first + MAX_BATCH]
        own.client.read(first, other.name, other.ready.agent, batch)
        num_left += 1
    while num_left:
        ended, is_gone = own.client.wait(own.wake, 1.0)
        if is_gone or not all(end.is_done for end in ended):
            raise RuntimeError("a read has failed")
        num_left -= len(ended)
    return _SIZE_BYTES / (time.perf_counter() - began_s) / 1e9


def copy_all() -> float:
    """GB/s of copying as much memory within this process."""
    source, target = bytearray(_SIZE_BYTES), bytearray(_SIZE_BYTES)
    began_s = time.perf_counter()
    memoryview(target)[:] = source
    return _SIZE_BYTES / (time.perf_counter() - began_s) / 1e9


def measure(way: Way, rounds: int) -> list[Figure]:
    """Speeds and their ratios to copying, measured in turn; of the slow path once, by its floor."""
    os.environ.update(way.environ)  # for the agents; the control is last
    figures: list[Figure] = []
    sizes, rounds = ((_FLOOR_BLOCK_BYTES,), 1) if way.is_control else (_BLOCK_BYTES, rounds)
    with open_end(way.engine, "asks") as own, open_end(way.engine, "has") as other:
        other.buffer[:] = os.urandom(_SIZE_BYTES)
        read_all(own, other, _SIZE_BYTES)  # connects, and touches every page
        for block_bytes in sizes:
            pairs = [(read_all(own, other, block_bytes), copy_all()) for _ in range(rounds)]
            x, metric = block_bytes >> 10, "read of 128 MiB by KiB of blocks"
            speeds, ratios = [p[0] for p in pairs], [p[0] / p[1] for p in pairs]
            figures.append(summarise("transfer", way.name, metric, "GB/s", x, speeds))
            figures.append(summarise("transfer", f"{way.name} / copy", metric, "ratio", x, ratios))
        if bytes(own.buffer) != bytes(other.buffer):
            raise RuntimeError("what was read is not what was there")
    return figures


def main() -> int:
    """Prints the figures; 1 where an engine is below its floor or is not there at all, or where the
    slow path is not.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="append to results/kv_transfer.csv")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    is_slow = False
    for way in WAYS:
        try:
            found = measure(way, arguments.rounds)
        except RuntimeError as error:
            print(f"{way.name}: not measured: {error}")
            is_slow = True
            continue
        figures += found
        best = max(f.p80 for f in found if (f.unit, f.x) == ("GB/s", _FLOOR_BLOCK_BYTES >> 10))
        if (best < way.floor_gb_per_s) is not way.is_control:
            place = "not below the" if way.is_control else "below its"
            print(f"{way.name} is {place} floor of {way.floor_gb_per_s} GB/s: {best:.2f}")
            is_slow = True
    print_figures(figures)
    if arguments.record:
        circumstances = describe_circumstances(["nixl-cu12", "mooncake-transfer-engine-non-cuda"])
        append_figures("kv_transfer.csv", figures, circumstances)
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
