"""Products of few rows: outputs and inputs of a step, splits, warps, stages; cuBLAS beside them.

Read next: `gpu_pool.kernels.small_linear`.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Final

from torch.nn.functional import linear

from benchmarks.gpu.timing import IS_GPU, count_copies
from benchmarks.gpu.tuning.trial import Trial, draw
from gpu_pool.kernels.small_linear import SmallLaunch, small_linear_triton
from gpu_pool.kernels.small_linear_table import SMALL_LINEAR

_ROWS: Final = (1, 8)
_VECTORS: Final = (
    (2, 1024, 4), (2, 2048, 4), (4, 512, 4), (4, 1024, 4), (4, 2048, 8), (8, 256, 4),
    (8, 512, 4), (8, 1024, 8), (16, 256, 4), (16, 512, 8),
) if IS_GPU else ((4, 32, 4),)  # fmt: skip
"""Outputs, inputs, warps."""
_TILES: Final = (
    (16, 128, 4, 5), (16, 256, 4, 4), (32, 128, 4, 4), (32, 128, 4, 6), (32, 256, 4, 4),
    (64, 64, 4, 6), (64, 128, 4, 5), (128, 64, 4, 5),
) if IS_GPU else ((16, 32, 4, 4),)  # fmt: skip
"""Outputs, inputs, warps, stages."""
_LARGE_BYTES: Final = 200 << 20
"""Weights of which outputs alone fill a GPU."""


def list_products() -> Iterator[Trial]:
    """All settings of the shapes of the table."""
    known = [(outputs, inputs) for _, outputs, inputs in SMALL_LINEAR.row_counts]
    for num_outputs, num_inputs in known if IS_GPU else ((64, 96),):
        weight = draw(num_outputs, num_inputs)
        weights = [weight, *(weight.clone() for _ in range(count_copies(weight.nbytes, 8) - 1))]
        for num_rows in _ROWS:
            case = f"product {num_outputs} x {num_inputs} of {num_rows}"
            x = draw(num_rows, num_inputs)
            yield Trial(
                case, "cublas", [partial(linear, x, one) for one in weights], is_chosen=True
            )
            ours = [partial(small_linear_triton, x, one, None) for one in weights]
            yield Trial(case, "chosen", ours, is_chosen=True)
            for launch in _list_launches(num_rows, weight.nbytes, num_inputs):
                calls = [partial(small_linear_triton, x, one, None, launch) for one in weights]
                yield Trial(case, _name(launch), calls)


def _list_launches(num_rows: int, num_bytes: int, num_inputs: int) -> Iterator[SmallLaunch]:
    """Settings, whole and in splits."""
    counts = (1,) if num_bytes > _LARGE_BYTES else (1, 2, 4)
    if num_rows <= 2:
        for (outputs, inputs, warps), splits in product(_VECTORS, counts):
            if splits == 1 or splits * inputs <= num_inputs:
                yield SmallLaunch(num_rows, outputs, inputs, splits, warps, 1)
        return
    for (outputs, inputs, warps, stages), splits in product(_TILES, counts):
        yield SmallLaunch(16, outputs, inputs, splits, warps, stages)


def _name(launch: SmallLaunch) -> str:
    """A setting in a few letters."""
    size = f"{launch.outputs}x{launch.inputs}"
    return f"{size} /{launch.num_splits} w{launch.num_warps} s{launch.num_stages}"
