"""Attention over paged memory, and what moves its blocks."""

from gpu_pool.kernels import (
    block_copy,
    fp8_write,
    latent_attention,
    latent_decode,
    paged_attention,
    paged_launch,
    split_decode,
    split_plan,
)
from gpu_pool.kernels.fp8_slots import LARGEST, Fp8Slots, describe_slots
from gpu_pool.kernels.gpu_traits import GpuTraits
from gpu_pool.kernels.triton_language import next_power_of_2
from tests.gpu_pool.kernels.variants.variant import Variant

_INTEGERS = (
    "tables_ptr",
    "starts_ptr",
    "lengths_ptr",
    "tile_sequences_ptr",
    "tile_firsts_ptr",
    "bounds_ptr",
    "items_ptr",
)
_FLOATS = ("scales_ptr", "mixed_ptr", "best_ptr", "total_ptr", "sinks_ptr")
_TYPES = {
    **dict.fromkeys(_INTEGERS, "*i32"),
    **dict.fromkeys(_FLOATS, "*fp32"),
    **dict.fromkeys(("ids_ptr", "memory_ptr", "copies_ptr"), "*i64"),
    "scale": "fp32",
    "soft_cap": "fp32",
}
_FP8_TYPES = {**_TYPES, "slots_ptr": "*u8"}


def list_attention(traits: GpuTraits) -> list[Variant]:
    """Splits and what they are planned by, then tiles of queries, then whole blocks."""
    return [
        *_list_plans(),
        *_list_split_decode(traits),
        *_list_latent(traits),
        *_list_tiles(traits),
        *_list_fp8_writes(),
        *_list_block_copies(),
    ]


def _list_plans() -> list[Variant]:
    """What prepares and joins splits."""
    join = {
        "HEADS": 32,
        "HEAD_DIM": 128,
        "MAX_SPLITS": split_plan.MAX_SPLITS,
        "DIMS": 128,
        "HAS_SINKS": True,
    }
    plan = {
        "BATCH": 512,
        "IS_CHUNKED": True,
        "MIN_KEYS": split_plan.MIN_SPLIT_KEYS,
        "MAX_SPLITS": split_plan.MAX_SPLITS,
        "DOUBLINGS": 16,
    }
    return [
        Variant("join_splits", split_decode._join_splits_kernel, join, types=_TYPES),
        Variant("plan_splits", split_plan._plan_splits_kernel, plan, types=_TYPES),
    ]


def _list_split_decode(traits: GpuTraits) -> list[Variant]:
    """Decode attention of small and large heads, capped ones too."""
    variants: list[Variant] = []
    for heads, kv_heads, head_dim in ((32, 8, 64), (32, 8, 128), (16, 8, 256), (64, 1, 128)):
        rows = max(16, heads // kv_heads)
        launch = split_decode.choose_split_decode_launch(traits, rows, head_dim, 2)
        constants = {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": 16,
            "ROWS": rows,
            "KEYS": launch.keys,
            "PADDED_DIM": head_dim,
            "HAS_CAP": head_dim == 256,
            "PRECISION": "tf32",
        }
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        name = f"split_decode/{heads}/{kv_heads}/{head_dim}"
        kernel = split_decode._split_decode_kernel
        own = constants | _describe(None, 2 * kv_heads * head_dim, traits)
        variants.append(Variant(name, kernel, own, options, _TYPES))
        if head_dim == 128:
            fp8 = Fp8Slots(2 * kv_heads * head_dim, 2 * kv_heads)
            own = constants | _describe(fp8, fp8.num_elements, traits)
            variants.append(Variant(f"{name}/fp8", kernel, own, options, _FP8_TYPES))
    return variants


def _describe(fp8: Fp8Slots | None, num_elements: int, traits: GpuTraits) -> dict[str, object]:
    """What kernels are told of slots on such a GPU."""
    return {"HAS_FP8": traits.capability >= 89, **describe_slots(fp8, num_elements)}


def _list_latent(traits: GpuTraits) -> list[Variant]:
    """Attention over DeepSeek's latents, with the heads of V2 Lite and of V3."""
    variants: list[Variant] = []
    for heads in (16, 128):
        constants = {
            "HEADS": heads,
            "VALUE_DIM": 512,
            "REST_DIM": 64,
            "BLOCK_SIZE": 16,
            "VALUES": 512,
            "REST": 64,
            "PRECISION": "tf32",
        }
        tile = {"TILE_TOKENS": 64 // heads or 1, "IS_CHUNKED": False}
        for name, kernel, rows, own in (
            ("latent_decode", latent_decode._latent_decode_kernel, heads, {}),
            ("latent_attention", latent_attention._latent_attention_kernel, 64, tile),
        ):
            for fp8, types in ((None, _TYPES), (Fp8Slots(576, 1), _FP8_TYPES)):
                launch = latent_attention.choose_latent_launch(
                    traits, rows, 512, 2, is_fp8=fp8 is not None
                )
                sizes = {"ROWS": launch.rows, "KEYS": launch.keys}
                sizes |= {**constants, **own, **_describe(fp8, 576, traits)}
                options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
                full = f"{name}/{heads}{'/fp8' if fp8 else ''}"
                variants.append(Variant(full, kernel, sizes, options, types))
    return variants


def _list_tiles(traits: GpuTraits) -> list[Variant]:
    """Prefill attention of few and of many rows."""
    variants: list[Variant] = []
    for head_dim in (64, 128, 256):
        most = paged_launch.choose_tile_rows(traits, head_dim, 2, is_fp8=False)
        for rows in dict.fromkeys((16, 64, most)):
            launch = paged_launch.choose_paged_attention_launch(traits, rows, head_dim, 2)
            constants = {
                "HEADS": 32,
                "KV_HEADS": 8,
                "HEAD_DIM": head_dim,
                "BLOCK_SIZE": 16,
                "TILE_TOKENS": rows // 4,
                "ROWS": rows,
                "KEYS": launch.keys,
                "PADDED_DIM": head_dim,
                "IS_CHUNKED": False,
                "HAS_CAP": head_dim == 256,
                "HAS_SINKS": head_dim == 64,
                "PRECISION": "tf32",
            }
            options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
            name = f"paged_attention/{head_dim}/{rows}"
            kernel = paged_attention._paged_attention_kernel
            plain = constants | _describe(None, 16 * head_dim, traits)
            variants.append(Variant(name, kernel, plain, options, _TYPES))
            if head_dim < 256 and rows <= 64:
                fp8 = constants | _describe(Fp8Slots(16 * head_dim, 16), 0, traits)
                variants.append(Variant(f"{name}/fp8", kernel, fp8, options, _FP8_TYPES))
    return variants


def _list_fp8_writes() -> list[Variant]:
    """Heads of usual models, and latents."""
    variants: list[Variant] = []
    for head_dim, num_scales in ((128, 16), (576, 1)):
        slots = Fp8Slots(num_scales * head_dim, num_scales)
        constants = {
            "SLOT_BYTES": slots.num_bytes,
            "SCALE_OFFSET": slots.scale_offset,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": next_power_of_2(head_dim),
            "LARGEST": LARGEST,
        }
        types = {"slots_ptr": "*u8", "scales_ptr": "*fp32", "slot_ids_ptr": "*i64"}
        kernel = fp8_write._fp8_write_kernel
        variants.append(
            Variant(f"fp8_write/{head_dim}", kernel, constants, {"num_warps": 1}, types)
        )
    return variants


def _list_block_copies() -> list[Variant]:
    """Both directions."""
    return [
        Variant(
            f"block_copy/{'out' if gathers else 'in'}",
            block_copy._block_copy_kernel,
            {"GATHERS": gathers, "BLOCK": block_copy._BLOCK},
            {"num_warps": 8},
            _TYPES,
        )
        for gathers in (True, False)
    ]
