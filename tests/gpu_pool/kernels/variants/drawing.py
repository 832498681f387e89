"""Drawing from Qwen3's 151,936 tokens, with filters and without."""

from gpu_pool.kernels import cutoffs, draw, penalise, scores, token_mask
from gpu_pool.kernels.gpu_traits import GpuTraits
from tests.gpu_pool.kernels.variants.variant import Variant

_FLOATS = (
    "logits_ptr",
    "largest_ptr",
    "temperatures_ptr",
    "top_ps_ptr",
    "min_ps_ptr",
    "cutoffs_ptr",
    "best_ptr",
    "reached_ptr",
    "totals_ptr",
)
_TYPES = {
    **dict.fromkeys(_FLOATS, "*fp32"),
    **dict.fromkeys(("winner_ptr", "top_ks_ptr", "limits_ptr", "starts_ptr"), "*i32"),
    **dict.fromkeys(("words_ptr", "output_ptr"), "*i32"),
    **dict.fromkeys(("repetition", "frequency", "presence"), "fp32"),
    "is_seen_ptr": "*i1",
    "rows_ptr": "*i64",
    **dict.fromkeys(("seeds_ptr", "positions_ptr", "token_ids_ptr"), "*i64"),
}


def list_drawing(_traits: GpuTraits) -> list[Variant]:
    """The largest logit, both searches, the race and its end."""
    parts = {"PARTS": 19, "PADDED": 32}
    tiles = {"PART": scores.PART, "BLOCK": scores.BLOCK}
    one = {"num_warps": 1}
    found = [
        Variant("largest", scores._largest_kernel, tiles, types=_TYPES),
        Variant("finish_draw", draw._finish_kernel, parts, one, _TYPES),
        Variant(
            "token_mask",
            token_mask._token_mask_kernel,
            {"BLOCK": token_mask._BLOCK},
            types=_TYPES,
        ),
        Variant("penalise", penalise._penalise_kernel, {"BLOCK": penalise._BLOCK}, types=_TYPES),
    ]
    for has_cutoffs in (False, True):
        race = {**parts, **tiles, "HAS_CUTOFFS": has_cutoffs}
        name = "race/filters" if has_cutoffs else "race"
        found.append(Variant(name, draw._race_kernel, race, types=_TYPES))
    for kind in ("count", "mass"):
        search = {**parts, "IS_MASS": kind == "mass"}
        reach = {**search, "PART": scores.PART, "BLOCK": cutoffs._BLOCK}
        found.append(Variant(f"reach/{kind}", cutoffs._reach_kernel, reach, types=_TYPES))
        found.append(Variant(f"settle/{kind}", cutoffs._settle_kernel, search, one, _TYPES))
    return found
