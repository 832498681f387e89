"""Products with weights in fp8 blocks, of DeepSeek-V3's sizes, and its experts'."""

from typing import Any

from gpu_pool.kernels import block_linear, fp8_blocks, grouped_linear
from gpu_pool.kernels.gpu_traits import GpuTraits
from tests.gpu_pool.kernels.variants.experts import TYPES
from tests.gpu_pool.kernels.variants.variant import Variant

_BYTES = {"bits_ptr": "*u8", "weights_ptr": "*u8", "scales_ptr": "*fp32"}
_FP32 = dict.fromkeys(("x_ptr", "bias_ptr", "out_ptr"), "*fp32")
_INPUTS = 7168


def list_blocks(traits: GpuTraits) -> list[Variant]:
    """One row and many, split or not, and both products of experts."""
    shared: dict[str, Any] = {
        "INPUTS": _INPUTS,
        "HAS_FP8": fp8_blocks.has_fp8(traits),
        "PRECISION": "tf32",
    }
    variants: list[Variant] = []
    for num_rows, itemsize in ((1, 2), (32, 2), (64, 2), (512, 2), (512, 4)):
        launch = block_linear.choose_block_launch(traits, num_rows, 2048, _INPUTS, itemsize)
        constants = {
            **shared,
            "PRECISION": "tf32" if itemsize == 2 else "ieee",
            "ROWS": launch.rows,
            "OUTPUTS": launch.outputs,
            "SPLITS": launch.num_splits,
            "HAS_BIAS": launch.num_splits == 1,
            "BLOCK": fp8_blocks.BLOCK,
        }
        kernel = block_linear._block_linear_kernel
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        is_between = num_rows in (32, 64)
        types = _BYTES if itemsize == 2 else _BYTES | _FP32
        name = f"block_linear/{num_rows}{'' if itemsize == 2 else '/fp32'}"
        variants.append(Variant(name, kernel, constants, options, types, is_between))
    for rows in (16, 32, 64, 128):
        for is_gated in (False, True):
            launch = grouped_linear.choose_grouped_launch(
                traits, rows, 2, is_gated=is_gated, is_blocked=True
            )
            constants = {
                **shared,
                "CHOSEN": 8 if is_gated else 0,
                "IS_GATED": is_gated,
                "IS_CLAMPED": False,
                "HAS_BIAS": False,
                "HAS_SCALES": True,
                "HAS_ROW_WEIGHTS": False,
                "BLOCK_ROWS": rows,
                "BLOCK_OUTPUTS": launch.outputs,
                "BLOCK_INPUTS": launch.inputs,
                "NEIGHBOURS": 8,
            }
            kernel = grouped_linear._grouped_linear_kernel
            options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
            name = f"grouped_blocks/{rows}/{'gated' if is_gated else 'plain'}"
            types = {**TYPES, **_BYTES}
            variants.append(Variant(name, kernel, constants, options, types, rows in (32, 64)))
    return variants
