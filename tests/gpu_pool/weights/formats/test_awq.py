"""AWQ's interleaved words become the numbers they stand for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.packing import read_packing
from tests.gpu_pool.weights.formats.packed_source import (
    check_refused,
    check_weight,
    create_weight,
    open_packed,
)
from tests.gpu_pool.weights.formats.packers import pack_awq, round_weight

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}


@pytest.mark.parametrize("group_size", [16, 32, 64, -1])
def test_numbers_are_those_that_were_packed(group_size: int, tmp_path: Path) -> None:
    size = 64 if group_size == -1 else group_size
    packed = pack_awq(round_weight(create_weight(), 4, size))
    source = open_packed(tmp_path, AWQ | {"group_size": group_size}, packed.tensors)
    check_weight(source, packed, size)
    assert source.shapes.keys() == {"a.weight"}


@pytest.mark.parametrize(
    ("changes", "pieces", "reason"),
    [
        ({}, {"scales": torch.ones(2, 15)}, r"lacks `a\.scales` of shape \[2, 16\]"),
        ({}, {"qzeros": None}, r"lacks `a\.qzeros` of shape \[2, 2\]"),
        ({}, {"qzeros": torch.ones(2, 2, dtype=torch.int64)}, r"`a\.qzeros` is I64"),
        ({}, {"qweight": torch.ones(64, 2)}, r"`a\.qweight` is F32"),
        ({}, {"qweight": torch.ones(63, 2, dtype=torch.int32)}, r"63 inputs of `a\.weight`"),
        (
            {"group_size": -1},
            {"qweight": torch.ones(63, 2, dtype=torch.int32)},
            r"`a\.weight` are 63, no even",
        ),
        ({"group_size": 128}, {}, r"64 inputs of `a\.weight` are no whole number of groups of 128"),
    ],
)
def test_pieces_that_do_not_fit_are_refused_by_name(
    changes: dict[str, Any], pieces: dict[str, Tensor | None], reason: str, tmp_path: Path
) -> None:
    packed = pack_awq(round_weight(create_weight(), 4, 32))
    check_refused(tmp_path, AWQ | changes, {**packed.tensors, **pieces}, reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": "gemv"}, "version gemv"),
        ({"version": "GEMV_fast"}, "version gemv_fast"),
        ({"version": "marlin"}, "version marlin"),
        ({"backend": "llm-awq"}, "version llm-awq"),
        ({"bits": 8}, "awq of 8 bits"),
        ({"zero_point": False}, "without zero points"),
        ({"group_size": -2}, "group_size -2 is none"),
    ],
)
def test_other_versions_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"{reason}.*Supported are"):
        read_packing(AWQ | changes)


def test_the_version_is_gemm_however_it_is_written() -> None:
    for version in ("GEMM", "gemm", None):
        read_packing(AWQ | {"version": version, "modules_to_not_convert": ["lm_head"]})
