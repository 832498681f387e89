"""Products of many rows by descriptors, beside cuBLAS. Units: TFLOP/s.

Read next: `gpu_pool.kernels.descriptor_linear`.
"""

import torch
from torch.nn import functional

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.timing import DEVICE, measure_ms
from benchmarks.harness import Figure, summarise
from gpu_pool.kernels.descriptor_linear import can_describe, descriptor_linear_triton
from gpu_pool.kernels.gpu_traits import find_traits

_SHAPES = ((28_672, 4096), (4096, 14_336), (6144, 4096))
"""Outputs and inputs of Llama-3.1-8B's products."""
_FLOPS = 1e12


def measure_descriptor_linear(bench: Bench) -> list[Figure]:
    """Both, over numbers of rows and shapes of an 8B model; nothing where there is no Hopper."""
    figures: list[Figure] = []
    dtype = bench.pick(torch.bfloat16, torch.half)
    for num_rows in bench.pick((512, 2048, 8192), (5,)):
        for num_outputs, num_inputs in bench.pick(_SHAPES, ((64, 32),)):
            if not can_describe(find_traits(DEVICE), num_inputs, num_outputs, 2):
                continue
            x = torch.randn(num_rows, num_inputs, device=DEVICE).to(dtype)
            weight = torch.randn(num_outputs, num_inputs, device=DEVICE).to(dtype)
            works = {
                OURS: lambda x=x, weight=weight: descriptor_linear_triton(x, weight),
                "cuBLAS": lambda x=x, weight=weight: functional.linear(x, weight),
            }
            flops = 2 * num_rows * num_outputs * num_inputs
            for provider, work in works.items():
                rates = [flops / ms * 1e3 / _FLOPS for ms in measure_ms(work)]
                what = f"product {num_outputs}x{num_inputs}"
                figures.append(summarise(what, provider, "rate", "TFLOP/s", num_rows, rates))
    return figures
