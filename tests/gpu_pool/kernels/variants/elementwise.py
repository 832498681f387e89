"""Norms, gates, turns, writes and tables, as Llama-3.1-70B launches them."""

from gpu_pool.kernels import (
    add_rms_norm,
    gather_tables,
    kv_write,
    norm_rotate_write,
    rms_norm,
    rotary,
    silu_mul,
)
from gpu_pool.kernels.gpu_traits import GpuTraits
from tests.gpu_pool.kernels.variants.variant import Variant

_NORM = {"eps": "fp32"}
_TABLES = {
    **dict.fromkeys(("tables_ptr", "rows_ptr", "at_ptr", "gathered_ptr"), "*i32"),
    "first_slots_ptr": "*i64",
}


def list_elementwise(_traits: GpuTraits) -> list[Variant]:
    """One variant of each."""
    wide, sixteen = {"BLOCK": 8192}, {"num_warps": 16}
    return [
        Variant("rms_norm", rms_norm._rms_norm_kernel, wide, sixteen, _NORM),
        Variant("add_rms_norm", add_rms_norm._add_rms_norm_kernel, wide, sixteen, _NORM),
        Variant("silu_mul", silu_mul._silu_mul_kernel, {"BLOCK": 1024}),
        Variant("rotary", rotary._rotary_kernel, {"HALF": 64, "BLOCK": 64}, {"num_warps": 1}),
        Variant(
            "gather_tables",
            gather_tables._gather_tables_kernel,
            {"BLOCK_SIZE": 16, "BLOCK": 1024},
            types=_TABLES,
        ),
        Variant(
            "kv_write",
            kv_write._kv_write_kernel,
            {"BLOCK": 1024},
            types={"slot_ids_ptr": "*i64"},
        ),
        *_list_heads(),
    ]


def _list_heads() -> list[Variant]:
    """Heads of Llama-3.1-8B, Qwen3-0.6B and Gemma 3, whose norms are in fp32."""
    kernel = norm_rotate_write._norm_rotate_write_kernel
    types = {**_NORM, "slot_ids_ptr": "*i64"}
    variants: list[Variant] = []
    for heads, kv_heads, half, has_norm in (
        (32, 8, 64, False),
        (16, 8, 64, True),
        (8, 4, 128, True),
    ):
        constants = {
            "NUM_HEADS": heads,
            "KV_HEADS": kv_heads,
            "HALF": half,
            "HAS_NORM": has_norm,
            "HAS_ROTATION": True,
            "WRITES": True,
            "HEADS": norm_rotate_write._HEADS,
            "BLOCK": half,
        }
        options = {"num_warps": norm_rotate_write.choose_head_warps(half)}
        its_types = {**types, "weight_ptr": "*fp32"} if half == 128 else types
        name = f"norm_rotate_write/{heads}/{kv_heads}/{2 * half}"
        variants.append(Variant(name, kernel, constants, options, its_types))
    return variants
