"""GPTQ's words, zeros and orders become the numbers they stand for."""

from dataclasses import replace
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
from tests.gpu_pool.weights.formats.packers import pack_gptq, round_weight, scatter

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 16), (4, 32), (4, -1), (8, 32), (8, -1)])
def test_numbers_are_those_that_were_packed(
    bits: int, group_size: int, symmetric: bool, version: int, tmp_path: Path
) -> None:
    size = 64 if group_size == -1 else group_size
    packed = pack_gptq(
        round_weight(create_weight(), bits, size, symmetric=symmetric), bits, version=version
    )
    config = GPTQ | {"bits": bits, "group_size": group_size, "sym": symmetric}
    config["checkpoint_format"] = "gptq" if version == 1 else "gptq_v2"
    source = open_packed(tmp_path, config, packed.tensors | {"bias": torch.ones(16)})
    check_weight(source, packed, size if bits == 4 else None)
    assert source.shapes.keys() == {"a.weight", "a.bias"}
    assert source.read("a.bias").tolist() == [1] * 16


@pytest.mark.parametrize("version", [1, 2])
def test_zeros_of_nothing_borrow_from_their_neighbours(version: int, tmp_path: Path) -> None:
    whole = round_weight(create_weight(), 4, 32)
    zeros = [[(row + group) % 16 * (row % 3 > 0) for group in range(2)] for row in range(16)]
    packed = pack_gptq(replace(whole, zeros=zeros), 4, version=version)
    config = GPTQ | {"checkpoint_format": f"gptq{'_v2' * (version - 1)}"}
    check_weight(open_packed(tmp_path, config, packed.tensors), packed, 32)


@pytest.mark.parametrize("bits", [4, 8])
def test_middles_that_version_1_stores_as_they_are_stay_so(bits: int, tmp_path: Path) -> None:
    whole = round_weight(create_weight(12), bits, 32, symmetric=True)
    packed = pack_gptq(whole, bits, version=2)
    config = GPTQ | {"bits": bits, "checkpoint_format": "gptq"}
    check_weight(open_packed(tmp_path, config, packed.tensors), packed, 32 if bits == 4 else None)
    # Where zeros may differ, so many equal ones are what version 1 makes of a number more.
    (tmp_path / "other").mkdir()
    source = open_packed(tmp_path / "other", config | {"sym": False}, packed.tensors)
    assert not torch.equal(source.read("a.weight"), packed.weight)


@pytest.mark.parametrize("bits", [4, 8])
def test_inputs_in_the_order_of_activations_become_floats_alone(bits: int, tmp_path: Path) -> None:
    groups = scatter(64, 16)
    assert groups != sorted(groups)
    packed = pack_gptq(round_weight(create_weight(), bits, 16, groups=groups), bits)
    config = GPTQ | {"bits": bits, "group_size": 16, "desc_act": True}
    check_weight(open_packed(tmp_path, config, packed.tensors), packed, None)


def test_whole_groups_in_another_order_stay_int4(tmp_path: Path) -> None:
    groups = [3 - column // 16 for column in range(64)]
    packed = pack_gptq(round_weight(create_weight(), 4, 16, groups=groups), 4)
    check_weight(open_packed(tmp_path, GPTQ | {"group_size": 16}, packed.tensors), packed, 16)


def test_one_group_has_no_order(tmp_path: Path) -> None:
    packed = pack_gptq(round_weight(create_weight(), 4, 64), 4)
    config = GPTQ | {"group_size": -1, "desc_act": True}
    check_weight(open_packed(tmp_path, config, packed.tensors), packed, 64)


def test_without_an_index_groups_are_neighbours(tmp_path: Path) -> None:
    packed = pack_gptq(round_weight(create_weight(), 4, 32), 4)
    del packed.tensors["g_idx"]
    check_weight(open_packed(tmp_path, GPTQ, packed.tensors), packed, 32)


def test_an_order_that_config_json_does_not_tell_of_is_kept_or_refused(tmp_path: Path) -> None:
    packed = pack_gptq(round_weight(create_weight(), 4, 16, groups=scatter(64, 16)), 4)
    source = open_packed(tmp_path, GPTQ | {"group_size": 16}, packed.tensors)
    assert torch.equal(source.read("a.weight"), packed.weight)
    with pytest.raises(CheckpointError, match=r"g_idx of `a\.weight` spreads groups"):
        source.read_int4("a.weight")


@pytest.mark.parametrize("group", [-1, 4])
def test_a_group_that_is_not_there_is_refused(group: int, tmp_path: Path) -> None:
    packed = pack_gptq(round_weight(create_weight(), 4, 16), 4)
    packed.tensors["g_idx"][5] = group
    source = open_packed(tmp_path, GPTQ | {"group_size": 16}, packed.tensors)
    for read in (source.read, source.read_int4):
        with pytest.raises(CheckpointError, match=r"g_idx of `a\.weight` names groups"):
            read("a.weight")


@pytest.mark.parametrize(
    ("changes", "pieces", "reason"),
    [
        ({}, {"scales": torch.ones(2, 15)}, r"lacks `a\.scales` of shape \[2, 16\]"),
        ({}, {"scales": None}, r"lacks `a\.scales`"),
        ({}, {"scales": torch.ones(2, 16, dtype=torch.int32)}, r"`a\.scales` is I32"),
        ({}, {"qzeros": None}, r"lacks `a\.qzeros` of shape \[2, 2\]"),
        ({}, {"qzeros": torch.ones(2, 2)}, r"`a\.qzeros` is F32.* I32"),
        ({}, {"qweight": torch.ones(8, 16)}, r"`a\.qweight` is F32"),
        ({}, {"g_idx": torch.zeros(63, dtype=torch.int32)}, r"lacks `a\.g_idx` of shape \[64\]"),
        ({"desc_act": True}, {"g_idx": None}, r"lacks `a\.g_idx`"),
        ({"group_size": 48}, {}, r"64 inputs of `a\.weight` are no whole number of groups of 48"),
        ({"group_size": 16}, {}, r"lacks `a\.qzeros` of shape \[4, 2\]"),
        ({"bits": 8}, {}, r"lacks `a\.qzeros`"),
    ],
)
def test_pieces_that_do_not_fit_are_refused_by_name(
    changes: dict[str, Any], pieces: dict[str, Tensor | None], reason: str, tmp_path: Path
) -> None:
    packed = pack_gptq(round_weight(create_weight(), 4, 32), 4)
    check_refused(tmp_path, GPTQ | changes, {**packed.tensors, **pieces}, reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bits": 3}, "gptq of 3 bits"),
        ({"group_size": 0}, "group_size 0 is none"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format marlin"),
        ({"format": "bitblas"}, "checkpoint_format bitblas"),
        ({"is_marlin_format": True}, "checkpoint_format marlin"),
        ({"pack_dtype": "int16"}, "gptq in int16"),
        ({"dynamic": {"+:.*down_proj": {"bits": 8}}}, "`dynamic` changes modules"),
        ({"adapter": {"rank": 8}}, "`adapter` is not supported"),
        ({"rotation": "hadamard"}, "`rotation` is not supported"),
    ],
)
def test_what_would_mean_something_else_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"{reason}.*Supported are"):
        read_packing(GPTQ | changes)


def test_modules_that_are_left_out_change_nothing() -> None:
    read_packing(GPTQ | {"dynamic": {"-:.*gate": {}}, "adapter": None, "pack_dtype": "int32"})
