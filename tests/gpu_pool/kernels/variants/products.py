"""Products of few rows and of many, of sizes of Llama-3.1-8B and Qwen3-0.6B, whole and split."""

from gpu_pool.kernels import descriptor_linear, small_linear
from gpu_pool.kernels.gpu_traits import GpuTraits
from tests.gpu_pool.kernels.variants.variant import Variant

_TYPES = {"parts_ptr": "*fp32"}


def list_products(traits: GpuTraits) -> list[Variant]:
    """A vector, few rows and many, and the sum of splits."""
    join = {"SPLITS": 4, "HAS_BIAS": True, "BLOCK": small_linear._JOIN_BLOCK}
    variants = list_described(traits)
    variants += [Variant("small_linear/join", small_linear._join_kernel, join, types=_TYPES)]
    for num_rows in (1, 2, 16, 32, 64):
        for num_outputs, num_inputs in ((28672, 4096), (1024, 3072)):
            launch = small_linear.choose_small_launch(traits, num_rows, num_outputs, num_inputs, 2)
            constants = {
                "ROWS": launch.rows,
                "INPUTS": num_inputs,
                "OUTPUTS": launch.outputs,
                "BLOCK_INPUTS": launch.inputs,
                "SPLITS": launch.num_splits,
                "HAS_BIAS": launch.num_splits == 1,
            }
            options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
            kernel = small_linear._vector_kernel
            if num_rows > 2:
                kernel, constants = small_linear._tile_kernel, {**constants, "PRECISION": "tf32"}
            name = f"small_linear/{num_rows}/{num_outputs}"
            is_between = num_rows in (2, 32)
            variants.append(Variant(name, kernel, constants, options, _TYPES, is_between))
    return variants


def list_described(traits: GpuTraits) -> list[Variant]:
    """Products of many rows on Hopper, of bf16."""
    if traits.capability < 90:
        return []
    launch = descriptor_linear.choose_descriptor_launch(2)
    constants = {
        "ROWS": launch.rows,
        "OUTPUTS": launch.outputs,
        "STEP": launch.step,
        "HAS_BIAS": True,
        "PRECISION": "tf32",
    }
    types = {
        "x_tiles": f"tensordesc<bf16[{launch.rows}, {launch.step}]>",
        "weight_tiles": f"tensordesc<bf16[{launch.outputs}, {launch.step}]>",
        "out_tiles": f"tensordesc<bf16[{launch.rows}, {launch.outputs}]>",
    }
    kernel = descriptor_linear._descriptor_linear_kernel
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return [Variant("descriptor_linear", kernel, constants, options, types)]
