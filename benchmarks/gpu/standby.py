"""Sleep and wake: seconds, what comes first after a wake, and whether all is as before.

Raises where bits, addresses, recorded graphs or the amount of memory are not what they were.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.load import Messages, Source, carry, create_request, create_settings
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.shapes import BLOCK_SIZE, LLAMA_8B, QWEN_SMALL
from benchmarks.gpu.timing import measure_s
from benchmarks.harness import Figure, summarise
from benchmarks.standby.bench_loader import (
    choose_raw_threads,
    drop_from_cache,
    read_raw,
    write_checkpoint,
)
from gpu_pool.engine.messages import AddSequence, Sleep, Wake
from gpu_pool.models.network import CausalModel
from gpu_pool.plan import Executor
from gpu_pool.weights.arena import Arena
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.virtual_memory import CudaVirtualMemory
from gpu_pool.worker.model_memory import create_places

_CONTEXT = 1024
_PROMPT = tuple(range(5, 105))
_NUM_BLOCKS = 256


def measure_wakes(bench: Bench) -> list[Figure]:
    """Seconds of sleep, wake and the first token behind it. Raises: `AssertionError`."""
    with bench.optional():
        check_graphs(bench)
    executor = _create(bench, LLAMA_8B)
    num_cycles = bench.pick(6, 3)
    parts: list[Source] = [Messages(_ask())]
    for _ in range(num_cycles):
        parts += [Messages(Sleep()), Messages(Wake(), _ask())]
    first, *cycles = carry(executor, parts, create_settings(1, _CONTEXT))
    sleeps = [run.moves_s[0] for run in cycles[::2]]
    wakes = [run.moves_s[0] for run in cycles[1::2]]
    firsts = [run.traces[0].first_s for run in cycles[1::2]]
    for run in cycles[1::2]:
        assert run.traces[0].token_ids == first.traces[0].token_ids, "a wake changes tokens"
    # The first step takes weights as they come: only with its end is it known that all are there.
    rates = [executor.info.weights_bytes / seconds / 1e9 for seconds in firsts]
    executor.close()
    what = f"{LLAMA_8B} standby"
    return [
        summarise(what, OURS, "first sleep, with its copy", "s", 1, sleeps[:1]),
        summarise(what, OURS, "later sleep", "s", 1, sleeps[1:]),
        summarise(what, OURS, "wake until requests start", "s", 1, wakes),
        summarise(what, OURS, "wake to first token", "GB/s", 1, rates),
        summarise(what, OURS, "wake to first token", "s", 1, firsts),
    ]


def check_graphs(bench: Bench) -> None:
    """A graph recorded before a sleep computes the same after the wake. Raises otherwise."""
    bench.require_gpu("a recorded graph over memory that comes and goes")
    arena = Arena(CudaVirtualMemory(bench.torch_device), 64 << 20, keeps=True)
    weight = arena.create((1024, 1024), torch.float32).normal_()
    x = torch.randn(16, 1024, device=bench.device)
    out = torch.empty(16, 1024, device=bench.device)
    torch.matmul(x, weight, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.matmul(x, weight, out=out)
    graph.replay()
    expected = out.clone()
    arena.leave()
    arena.come_back()
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected), "a recorded graph computes something else after a wake"
    del graph, weight
    arena.close()


def check_cycles(bench: Bench) -> list[Figure]:
    """The device's free memory after many cycles is that of before, to one part in a hundred."""
    executor = _create(bench, QWEN_SMALL)
    num_cycles = bench.pick(100, 5)
    if bench.device != "cuda":
        bench.notes.append("free memory after cycles of sleep needs an NVIDIA GPU")
    free: list[int] = []

    def list_parts() -> Iterator[Source]:
        for _ in range(2):
            yield Messages(_ask())
            free.append(_measure_free(bench))
            for _ in range(num_cycles if len(free) == 1 else 0):
                yield Messages(Sleep())
                yield Messages(Wake())

    runs = carry(executor, list_parts(), create_settings(1, _CONTEXT))
    answers = [run.traces[0].token_ids for run in runs if run.traces]
    executor.close()
    gone = free[0] - free[1]
    assert abs(gone) <= free[0] // 100, f"{gone} bytes are gone"
    assert answers[0] == answers[1], "tokens have changed"
    figure = summarise(
        f"{QWEN_SMALL} standby", OURS, "memory gone", "MiB", num_cycles, [gone / 2**20]
    )
    return [figure]


def measure_load(bench: Bench) -> list[Figure]:
    """From the drive to the device, beside the drive's own rate into the host's memory."""
    num_bytes = bench.pick(4 << 30, 64 << 20)
    samples: dict[str, list[float]] = {OURS: [], "raw": []}
    with tempfile.TemporaryDirectory(dir=bench.scratch) as name:
        path = write_checkpoint(Path(name), num_bytes)
        num_threads = choose_raw_threads(path)
        readers: dict[str, Callable[[], object]] = {
            OURS: lambda: _load(bench, Path(name), num_bytes),
            "raw": lambda: read_raw(path, num_threads),
        }
        for _ in range(3):
            for provider, read in readers.items():
                drop_from_cache(path)
                samples[provider].append(num_bytes / measure_s(read) / 1e9)
    figures = [
        summarise("load cold", provider, "rate", "GB/s", num_bytes >> 20, found)
        for provider, found in samples.items()
    ]
    share = 100 * figures[0].p50 / figures[1].p50
    figures.append(
        summarise("load cold", OURS, "share of the drive's", "%", num_bytes >> 20, [share])
    )
    return figures


def _load(bench: Bench, folder: Path, num_bytes: int) -> None:
    """All tensors of a checkpoint, as a model's weights."""
    places = create_places(bench.torch_device, num_bytes)
    held = []
    with Checkpoint(folder) as checkpoint:
        names = list(checkpoint.shapes)
        checkpoint.expect(names)
        held = [places.put(checkpoint.read(name)) for name in names]
    bench.synchronise()
    places.finish(cast(CausalModel, _Weights((held,)))).close()


@dataclass(frozen=True)
class _Weights:
    """Tensors as memory sees a model: what its parts lead to."""

    passage: Sequence[object]


def _measure_free(bench: Bench) -> int:
    """Bytes of the device that are free."""
    return torch.cuda.mem_get_info()[0] if bench.device == "cuda" else 0


def _ask() -> AddSequence:
    """For the greedy token behind a prompt of 100."""
    return create_request(0, _PROMPT, 1, temperature=0.0)


def _create(bench: Bench, name: str) -> Executor:
    """A random model whose memory can leave."""
    return create_random_executor(
        bench.find_shapes(name),
        bench.device,
        context_window=_CONTEXT,
        num_blocks=max(_NUM_BLOCKS, _CONTEXT // BLOCK_SIZE),
    )
