"""Mixtures of experts: their order, their products, their sum."""

from gpu_pool.kernels import expert_order, expert_sum, grouped_linear
from gpu_pool.kernels.gpu_traits import GpuTraits
from tests.gpu_pool.kernels.variants.variant import Variant

_INTEGERS = ("rows_ptr", "experts_ptr", "firsts_ptr", "ends_ptr", "ordered_ptr", "blocks_ptr")
TYPES = {
    **dict.fromkeys(_INTEGERS, "*i32"),
    "chosen_ptr": "*i64",
    "row_weights_ptr": "*fp32",
    "alpha": "fp32",
    "limit": "fp32",
}


def list_experts(traits: GpuTraits) -> list[Variant]:
    """Experts: silu without biases and with weighed inputs, and clamped gates with biases."""
    variants = [
        Variant(
            "expert_sum",
            expert_sum._expert_sum_kernel,
            {"CHOSEN": 8, "HELD": 128, "HAS_WEIGHTS": True, "BLOCK": 1024},
            types=TYPES,
        )
    ]
    for held in (8, 128, 512):
        rank = {"HELD": held, "ROWS": expert_order._ROWS, "OTHERS": expert_order._OTHERS}
        cut = {
            "HELD": held,
            "PADDED_HELD": held,
            "BLOCK_ROWS": 16,
            "BLOCKS": expert_order._BLOCKS,
            "OTHERS": expert_order.choose_others(held),
        }
        variants += [
            Variant(
                f"expert_rank/{held}",
                expert_order._rank_kernel,
                rank,
                types=TYPES,
                is_between=held == 128,
            ),
            Variant(
                f"expert_cut/{held}",
                expert_order._cut_kernel,
                cut,
                {"num_warps": 8},
                TYPES,
                is_between=held == 128,
            ),
        ]
    for rows in (16, 32, 64, 128):
        for is_gated in (False, True):
            launch = grouped_linear.choose_grouped_launch(traits, rows, 2, is_gated=is_gated)
            options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
            for num_inputs, is_clamped in ((2048, False), (2880, True)):
                constants = {
                    "INPUTS": num_inputs,
                    "CHOSEN": 8 if is_gated else 0,
                    "IS_GATED": is_gated,
                    "IS_CLAMPED": is_clamped and is_gated,
                    "HAS_BIAS": is_clamped,
                    "HAS_SCALES": False,
                    "HAS_FP8": False,
                    "HAS_ROW_WEIGHTS": is_gated and not is_clamped,
                    "BLOCK_ROWS": rows,
                    "BLOCK_OUTPUTS": launch.outputs,
                    "BLOCK_INPUTS": launch.inputs,
                    "NEIGHBOURS": 8,
                    "PRECISION": "tf32",
                }
                name = f"grouped_linear/{rows}/{num_inputs}/{'gated' if is_gated else 'plain'}"
                kernel = grouped_linear._grouped_linear_kernel
                is_between = rows in (32, 64)
                variants.append(Variant(name, kernel, constants, options, TYPES, is_between))
    return variants
