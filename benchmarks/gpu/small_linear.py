"""Products of few rows beside cuBLAS, and the table of who serves which shape, printed anew.

A product is timed as one of a chain, as in a recorded step. The table's lines go to
`gpu_pool/kernels/small_linear_table.py`. Units: GB/s of weights read.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch.nn import functional

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.product_errors import compare
from benchmarks.gpu.timing import DEVICE, count_copies, measure_chain_ms
from benchmarks.harness import Figure, summarise
from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.small_linear import small_linear_reference, small_linear_triton
from gpu_pool.kernels.small_linear_table import SMALL_LINEAR

_ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
_GAIN: Final = 0.97
"""Ours takes at most so much of cuBLAS's time where it is preferred."""


def measure_small_linear(bench: Bench) -> list[Figure]:
    """Rates of both over all shapes of the table. Raises: `AssertionError` for a wrong product."""
    capability = find_traits(DEVICE).capability
    known = dict.fromkeys((outputs, inputs) for _, outputs, inputs in SMALL_LINEAR.row_counts)
    shapes, dtype = bench.pick((tuple(known), torch.bfloat16), (((64, 96),), torch.half))
    figures: list[Figure] = []
    lines: list[str] = []
    for num_outputs, num_inputs in shapes:
        faster: list[int] = []
        for num_rows in bench.pick(_ROWS, (1, 4)):
            samples = _time_shape(num_rows, num_outputs, num_inputs, dtype)
            num_bytes = 2 * num_outputs * num_inputs
            for provider, times in samples.items():
                what, rates = f"{num_outputs} x {num_inputs}", [num_bytes / t / 1e6 for t in times]
                figures.append(summarise(what, provider, "rate", "GB/s", num_rows, rates))
            ours, cublas = (statistics.median(times) for times in samples.values())
            if ours <= _GAIN * cublas:
                faster.append(num_rows)
        found = ", ".join(map(str, faster)) + "," * (len(faster) == 1)
        lines.append(f"            ({capability}, {num_outputs}, {num_inputs}): ({found}),")
    print(*lines, sep="\n")
    return figures


def _time_shape(
    num_rows: int, num_outputs: int, num_inputs: int, dtype: torch.dtype
) -> dict[str, list[float]]:
    """Milliseconds of ours and of cuBLAS, in this order."""
    x = torch.randn(num_rows, num_inputs, device=DEVICE, dtype=dtype)
    weight = torch.randn(num_outputs, num_inputs, device=DEVICE, dtype=dtype) / 64
    error = compare(
        small_linear_triton(x, weight, None), small_linear_reference(x, weight, None).float()
    )
    assert error <= 1e-2, f"{num_rows} rows x {num_outputs} x {num_inputs}: error {error}"
    weights = [weight, *(weight.clone() for _ in range(count_copies(weight.nbytes, 9) - 1))]
    runs: dict[str, list[Callable[[], object]]] = {
        OURS: [partial(small_linear_triton, x, one, None) for one in weights],
        "cublas": [partial(functional.linear, x, one) for one in weights],
    }
    return {provider: measure_chain_ms(calls) for provider, calls in runs.items()}
