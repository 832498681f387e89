"""Sleep and wake on a GPU: seconds, what comes first after a wake, and whether all is as before.

Raises where bits, addresses, recorded graphs or the amount of memory are not what they were.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu.random_network import BLOCK_SIZE, SHAPES, create_random_runner, describe_network
from benchmarks.harness import Figure, summarise
from benchmarks.standby.bench_loader import (
    choose_raw_threads,
    drop_from_cache,
    read_raw,
    write_checkpoint,
)
from contracts.inference import SamplingParams
from gpu_pool.models.parameters import count_parameters
from gpu_pool.plan import BlockId, ForwardPlan, NewSequence, ScheduledSequence, SequenceId
from gpu_pool.runner.model_runner import ModelRunner
from gpu_pool.weights.arena import Arena
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.virtual_memory import CudaVirtualMemory
from gpu_pool.worker.model_memory import GpuPlaces

OURS = "hearth"
_CONTEXT = 1024
_NUM_BLOCKS = 256
_LOAD_BYTES = 2 << 30
_NUM_CYCLES = 100
_DEVICE = torch.device("cuda")


def measure_standby() -> list[Figure]:
    """All of it. Raises: `AssertionError`."""
    check_graphs()
    return [*_measure_wakes("llama-3.1-8b", 5), *_check_cycles("qwen3-0.6b"), *_measure_load()]


def check_graphs() -> None:
    """A graph recorded before a sleep computes the same after the wake. Raises otherwise."""
    arena = Arena(CudaVirtualMemory(_DEVICE), 64 << 20, keeps=True)
    weight = arena.create((1024, 1024), torch.float32).normal_()
    x, out = torch.randn(16, 1024, device=_DEVICE), torch.empty(16, 1024, device=_DEVICE)
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


def _create(name: str) -> tuple[ModelRunner, GpuPlaces]:
    """A random model whose memory lies in arenas."""
    network = describe_network(SHAPES[name], _CONTEXT)
    num_bytes = count_parameters(network.parameters) * torch.bfloat16.itemsize
    places = GpuPlaces(CudaVirtualMemory(_DEVICE), num_bytes, 8 << 30)
    return create_random_runner(name, _NUM_BLOCKS, _CONTEXT, places), places


def _measure_wakes(name: str, num_cycles: int) -> list[Figure]:
    """Seconds of sleep, wake and the first token behind it; the tokens are those of before."""
    runner, places = _create(name)
    memory = places.finish(runner)
    expected = _draw_token(runner, 0)
    sleeps, wakes, firsts = [], [], []
    for cycle in range(1, num_cycles + 1):
        sleeps.append(_time_s(memory.leave))
        began_s = time.perf_counter()
        wakes.append(_time_s(memory.come_back))
        token = _draw_token(runner, cycle)
        firsts.append(time.perf_counter() - began_s)
        assert token == expected, "the first token after a wake is another one"
    rates = [memory.weights_bytes / seconds / 1e9 for seconds in wakes]
    what = f"{name} standby"
    figures = [
        summarise(what, OURS, "first sleep, with its copy", "s", 1, sleeps[:1]),
        summarise(what, OURS, "later sleep", "s", 1, sleeps[1:]),
        summarise(what, OURS, "wake", "s", 1, wakes),
        summarise(what, OURS, "wake", "GB/s", 1, rates),
        summarise(what, OURS, "wake to first token", "s", 1, firsts),
    ]
    del runner
    memory.close()
    return figures


def _check_cycles(name: str) -> list[Figure]:
    """The device's free memory after many cycles is that of before, to one part in a hundred."""
    runner, places = _create(name)
    memory = places.finish(runner)
    expected = _draw_token(runner, 0)
    memory.leave()
    memory.come_back()
    before, total = torch.cuda.mem_get_info()
    for _ in range(_NUM_CYCLES):
        memory.leave()
        memory.come_back()
    after = torch.cuda.mem_get_info()[0]
    assert abs(after - before) <= total // 100, f"{before - after} bytes are gone"
    assert _draw_token(runner, 1) == expected, "tokens have changed"
    del runner
    memory.close()
    gone = (before - after) / 2**20
    return [summarise(f"{name} standby", OURS, "memory gone", "MiB", _NUM_CYCLES, [gone])]


def _measure_load() -> list[Figure]:
    """From the drive to the device, beside the drive's own rate into the host's memory."""
    samples: dict[str, list[float]] = {OURS: [], "raw": []}
    with tempfile.TemporaryDirectory() as name:
        path = write_checkpoint(Path(name), _LOAD_BYTES)
        num_threads = choose_raw_threads(path)
        readers: dict[str, Callable[[], object]] = {
            OURS: lambda: _load(Path(name)),
            "raw": lambda: read_raw(path, num_threads),
        }
        for _ in range(3):
            for provider, read in readers.items():
                drop_from_cache(path)
                samples[provider].append(_LOAD_BYTES / _time_s(read) / 1e9)
    return [
        summarise("load cold", provider, "rate", "GB/s", _LOAD_BYTES >> 20, found)
        for provider, found in samples.items()
    ]


def _load(folder: Path) -> None:
    """All tensors of a checkpoint in an arena."""
    places = GpuPlaces(CudaVirtualMemory(_DEVICE), _LOAD_BYTES, 0)
    with Checkpoint(folder) as checkpoint:
        names = list(checkpoint.shapes)
        checkpoint.expect(names)
        for name in names:
            places.put(checkpoint.read(name))
    torch.cuda.synchronize()
    places.finish(None).close()


def _draw_token(runner: ModelRunner, step: int) -> int:
    """The greedy token behind a prompt of 100; `step` numbers plan and sequence."""
    blocks = tuple(BlockId(index) for index in range(-(-101 // BLOCK_SIZE)))
    sequence_id = SequenceId(step)
    sampling = SamplingParams(temperature=0.0, seed=0)
    prompt = tuple(range(5, 105))
    released = (SequenceId(step - 1),) if step else ()
    new = NewSequence(sequence_id, prompt, len(prompt), 0, sampling)
    work = ScheduledSequence(sequence_id, len(prompt), (blocks,), True)
    (sampled,) = runner.execute(ForwardPlan(step, released, (new,), (work,))).sampled
    return sampled.token_ids[0]


def _time_s(work: Callable[[], object]) -> float:
    """Wall time, the device waited for."""
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began_s
