"""How much memory models take, and how many tokens of KV that leaves.

Read next: `gpu_pool.worker.kv_memory`.
"""

from random import Random
from typing import Final

import torch

from benchmarks.gpu.bench import OURS, Bench, NotHere
from benchmarks.gpu.load import Streams, carry, create_request, create_settings, draw_prompt
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.shapes import HALF_SCOUT, LLAMA_8B, SHAPES, describe_network
from benchmarks.gpu.watching import Watched, watch
from benchmarks.harness import Figure, summarise
from gpu_pool.models.parameters import count_parameters

_GIB: Final = 1 << 30
_LONG_CONTEXT: Final = 131_072
_BATCH_TOKENS: Final = 8192
_REHEARSED_KV_BYTES: Final = 4 << 20


def measure_memory(bench: Bench) -> list[Figure]:
    """KV tokens with default settings, and the peak of a step of 8,192 tokens, of two models."""
    figures: list[Figure] = []
    for name in (LLAMA_8B, HALF_SCOUT):
        with bench.optional():
            figures += _measure(bench, name)
        bench.free_memory()
    return figures


def _measure(bench: Bench, name: str) -> list[Figure]:
    """One model's figures. Raises: `NotHere` where it does not fit."""
    context_window = bench.pick(_LONG_CONTEXT, 512)
    free_before = 0
    if bench.device == "cuda":
        free_before = torch.cuda.mem_get_info()[0]
        parameters = describe_network(SHAPES[name], context_window).parameters
        num_bytes = count_parameters(parameters) * torch.bfloat16.itemsize
        if num_bytes > 0.9 * free_before:
            raise NotHere(f"{name} needs {num_bytes / _GIB:.0f} GiB; {free_before / _GIB:.0f} free")
    executor = create_random_executor(
        bench.find_shapes(name),
        bench.device,
        context_window=context_window,
        kv_bytes=bench.pick(None, _REHEARSED_KV_BYTES),
        max_step_tokens=_BATCH_TOKENS,
    )
    info = executor.info
    length = bench.pick(4 * _BATCH_TOKENS, 128)
    request = create_request(0, draw_prompt(Random(0), length, info.vocab_size), 8)
    watched = Watched()
    with watch(bench, watched):
        carry(executor, [Streams([request])], create_settings(1, bench.pick(_BATCH_TOKENS, 64)))
    executor.close()
    what = f"{name} memory"
    figures = [
        summarise(what, OURS, "weights", "GiB", 1, [info.weights_bytes / _GIB]),
        summarise(what, OURS, "KV", "GiB", 1, [info.kv_bytes / _GIB]),
        summarise(what, OURS, "KV tokens", "tokens", 1, [info.num_blocks * info.block_size]),
    ]
    if watched.least_free_bytes is None:
        bench.notes.append("peak memory needs an NVIDIA GPU")
        return figures
    peak = (free_before - watched.least_free_bytes) / _GIB
    left = watched.least_free_bytes / _GIB
    return [
        *figures,
        summarise(what, OURS, "peak", "GiB", 1, [peak]),
        summarise(what, OURS, "left free at the peak", "GiB", 1, [left]),
    ]
