"""fp8 with a factor per tensor or row becomes the numbers it stands for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu_pool.weights.formats.packed_source import (
    check_refused,
    check_weight,
    create_weight,
    open_packed,
)
from tests.gpu_pool.weights.formats.packers import FP8, pack_scaled

FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (16,), (16, 1)])
@pytest.mark.parametrize("config", [FBGEMM, STATIC])
def test_numbers_are_multiplied_by_their_factor(
    config: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    factors = torch.rand(shape) + 0.5
    wide = factors.reshape(-1, 1)
    packed = pack_scaled(create_weight(), FP8, wide if wide.numel() > 1 else factors)
    packed.tensors["weight_scale"] = factors
    source = open_packed(tmp_path, config, packed.tensors)
    check_weight(source, packed, None)


def test_factors_of_activations_and_of_kv_memory_are_left_unread(tmp_path: Path) -> None:
    packed = pack_scaled(create_weight(), FP8, torch.ones(1))
    names = ("input_scale", "input_scale_ub", "k_scale", "v_scale", "q_scale", "output_scale")
    others = {name: torch.ones(1) for name in names} | {"bias": torch.ones(16)}
    source = open_packed(tmp_path, STATIC, packed.tensors | others)
    assert source.shapes.keys() == source.dtypes.keys() == {"a.weight", "a.bias"}


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ({"weight_scale": torch.ones(15, 1)}, r"lacks `a\.weight_scale` with a factor"),
        ({"weight_scale": torch.ones(1, dtype=torch.int32)}, r"`a\.weight_scale` is I32"),
        ({"weight": torch.ones(16, 64)}, r"`a\.weight` is F32; .* F8_E4M3"),
        ({"weight": torch.ones(16, 64).to(torch.float8_e5m2)}, r"`a\.weight` is F8_E5M2"),
    ],
)
def test_pieces_that_do_not_fit_are_refused_by_name(
    pieces: dict[str, Tensor | None], reason: str, tmp_path: Path
) -> None:
    packed = pack_scaled(create_weight(), FP8, torch.ones(1))
    check_refused(tmp_path, STATIC, {**packed.tensors, **pieces}, reason)
