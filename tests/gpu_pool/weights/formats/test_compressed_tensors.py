"""What compressed-tensors packs becomes the numbers it stands for, each module by its group."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.packing import UnpackedSource, read_packing
from tests.gpu_pool.weights.formats.packed_source import (
    check_refused,
    check_weight,
    create_weight,
    open_packed,
)
from tests.gpu_pool.weights.formats.packers import (
    FP8,
    Whole,
    describe_compressed,
    pack_compressed,
    pack_scaled,
    round_weight,
    scatter,
)

GROUPS: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
FLOATS: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel"}


def describe_words(**changes: Any) -> dict[str, Any]:
    """A `quantization_config` with numbers in words."""
    return describe_compressed("pack-quantized", **(GROUPS | changes))


@pytest.mark.parametrize("num_rows", [16, 13])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [16, 32, None])
def test_numbers_are_those_that_were_packed(
    group_size: int | None, bits: int, symmetric: bool, num_rows: int, tmp_path: Path
) -> None:
    size = group_size or 64
    whole = round_weight(create_weight(num_rows), bits, size, symmetric=symmetric)
    packed = pack_compressed(whole, bits, symmetric=symmetric)
    config = describe_words(
        num_bits=bits,
        symmetric=symmetric,
        strategy="channel" if group_size is None else "group",
        group_size=group_size,
    )
    source = open_packed(tmp_path, config, packed.tensors)
    check_weight(source, packed, size if bits == 4 else None)
    assert source.shapes.keys() == {"a.weight"}


@pytest.mark.parametrize("symmetric", [True, False])
def test_inputs_in_the_order_of_activations_become_floats_alone(
    symmetric: bool, tmp_path: Path
) -> None:
    groups = scatter(64, 32)
    whole: Whole = round_weight(create_weight(), 4, 32, symmetric=symmetric, groups=groups)
    packed = pack_compressed(whole, 4, symmetric=symmetric)
    packed.tensors["weight_g_idx"] = torch.tensor(groups, dtype=torch.int32)
    source = open_packed(tmp_path, describe_words(symmetric=symmetric), packed.tensors)
    check_weight(source, packed, None)


def test_a_strategy_that_is_not_named_follows_from_the_group_size(tmp_path: Path) -> None:
    packed = pack_compressed(
        round_weight(create_weight(), 4, 64, symmetric=True), 4, symmetric=True
    )
    config = describe_words(strategy=None, group_size=-1)
    check_weight(open_packed(tmp_path, config, packed.tensors), packed, 64)


def test_every_module_is_read_as_its_group_says(tmp_path: Path) -> None:
    weight = create_weight()
    whole = {bits: round_weight(weight, bits, 32, symmetric=True) for bits in (4, 8)}
    packed = {
        "named": pack_compressed(whole[8], 8, symmetric=True),
        "like_down": pack_compressed(
            round_weight(weight, 4, 16, symmetric=True), 4, symmetric=True
        ),
        "other": pack_compressed(whole[4], 4, symmetric=True),
        "floats": pack_scaled(weight, FP8, torch.rand(16, 1).add(0.5)),
    }
    groups = {
        "every": {"weights": GROUPS},
        "some": {"weights": GROUPS | {"group_size": 16}, "targets": ["re:.*down"]},
        "one": {"weights": GROUPS | {"num_bits": 8}, "targets": ["named"]},
        "wide": {"weights": FLOATS, "targets": ["floats"], "format": "float-quantized"},
    }
    config = describe_words() | {"config_groups": groups}
    tensors = {
        f"{module}.{end}": piece
        for module, pieces in packed.items()
        for end, piece in pieces.tensors.items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    source = UnpackedSource(Checkpoint(tmp_path), read_packing(config))
    for module, pieces in packed.items():
        assert torch.equal(source.read(f"{module}.weight"), pieces.weight)
    sizes = {module: source.find_group_size(f"{module}.weight") for module in packed}
    assert sizes == {"named": None, "like_down": 16, "other": 32, "floats": None}


def test_a_module_of_no_group_is_refused(tmp_path: Path) -> None:
    packed = pack_compressed(round_weight(create_weight(), 4, 32), 4, symmetric=True)
    config = describe_words()
    config["config_groups"]["group_0"]["targets"] = ["re:b"]
    check_refused(tmp_path, config, {**packed.tensors}, r"No group .* is for `a\.weight`")


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("float-quantized", FP8), ("naive-quantized", FP8), ("int-quantized", torch.int8)],
)
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_eight_bits_are_multiplied_by_their_factor(
    strategy: str, form: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    factors = (torch.rand(16, 1) if strategy == "channel" else torch.rand(1)).bfloat16().add(0.1)
    packed = pack_scaled(create_weight() * 20, dtype, factors)
    kind = "int" if dtype == torch.int8 else "float"
    config = describe_compressed(form, **FLOATS | {"type": kind, "strategy": strategy})
    calibration = {"input_scale": torch.ones(1), "k_scale": torch.ones(1)}
    source = open_packed(tmp_path, config, packed.tensors | calibration)
    check_weight(source, packed, None)
    assert source.shapes.keys() == {"a.weight"}


def test_fp8_blocks_stay_blocks_for_who_multiplies_them(tmp_path: Path) -> None:
    weight, factors = create_weight(16, 48).to(FP8), torch.rand(2, 2)
    config = describe_compressed(
        "float-quantized", **FLOATS | {"strategy": "block", "block_structure": [8, 32]}
    )
    source = open_packed(tmp_path, config, {"weight": weight, "weight_scale": factors})
    assert source.has_blocks("a.weight", (8, 32))
    found = source.read("a.weight")
    for row in range(16):
        for column in range(48):
            expected = weight[row, column].float() * factors[row // 8, column // 32]
            assert found[row, column] == expected


@pytest.mark.parametrize(
    ("config", "pieces", "reason"),
    [
        (describe_words(), {"weight_scale": None}, r"lacks `a\.weight_scale` with a factor"),
        (describe_words(), {"weight_scale": torch.ones(16, 2).int()}, r"weight_scale` is I32"),
        (describe_words(), {"weight_shape": torch.ones(2)}, r"weight_shape` is F32"),
        (describe_words(), {"weight_packed": torch.ones(16, 8)}, r"weight_packed` is F32"),
        (describe_words(group_size=48), {}, "every 48 numbers"),
        (describe_words(symmetric=False), {}, r"lacks `a\.weight_zero_point` of shape \[2, 2\]"),
        (describe_words(num_bits=8), {}, r"of `a\.weight`, of shape \[16, 32\]"),
        (
            describe_words(),
            {"weight_g_idx": torch.zeros(60, dtype=torch.int32)},
            r"lacks `a\.weight_g_idx`",
        ),
        (describe_compressed("float-quantized", **FLOATS), {}, r"`a\.weight_packed` is packed"),
        (
            describe_words(),
            {"weight": torch.ones(16, 64), "weight_packed": None},
            r"lacks `a\.weight_packed`",
        ),
    ],
)
def test_pieces_that_do_not_fit_are_refused_by_name(
    config: dict[str, Any], pieces: dict[str, Tensor | None], reason: str, tmp_path: Path
) -> None:
    packed = pack_compressed(round_weight(create_weight(), 4, 32), 4, symmetric=True)
    check_refused(tmp_path, config, {**packed.tensors, **pieces}, reason)


def test_a_shape_that_words_do_not_hold_is_refused_by_name(tmp_path: Path) -> None:
    for bits in (4, 8):
        whole = round_weight(create_weight(), bits, 32, symmetric=True)
        packed = pack_compressed(whole, bits, symmetric=True)
        packed.tensors["weight_shape"][1] = 60
        source = open_packed(tmp_path, describe_words(num_bits=bits), packed.tensors)
        with pytest.raises(CheckpointError, match=r"\[16, 60\] are not supported \(`a\.weight`\)"):
            source.read("a.weight")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (describe_words(num_bits=3), "weights of 3 bits"),
        (describe_words(group_size=None), "strategy group"),
        (describe_words(strategy="tensor"), "strategy tensor"),
        (describe_compressed("nvfp4-pack-quantized", **FLOATS), "format `nvfp4-pack-quantized`"),
        (describe_compressed("marlin-24", **GROUPS), "format `marlin-24`"),
        (
            describe_compressed("float-quantized", **FLOATS | {"strategy": "group"}),
            "strategy group",
        ),
        (
            describe_compressed("float-quantized", **FLOATS | {"strategy": "block"}),
            "strategy block",
        ),
        (describe_compressed("int-quantized", **GROUPS), "format `int-quantized`"),
        (
            describe_compressed("int-quantized", **FLOATS | {"type": "int", "symmetric": False}),
            "asymmetric",
        ),
        (describe_words() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24"),
        (describe_words() | {"transform_config": {"config_groups": {}}}, "transform_config"),
        (describe_words() | {"config_groups": {}}, "without config_groups"),
    ],
)
def test_other_ways_of_storing_are_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"{reason}.*Supported are"):
        read_packing(config)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("re:(", r"`re:\(` is no pattern: missing"),
        ("re:a{99999999999999999999}", "}` is no pattern: the repetition number"),
        (f"re:{'(' * 5000}{')' * 5000}", r"`re:\({77}…` is no pattern: maximum recursion"),
    ],
)
def test_a_target_that_is_no_pattern_is_refused(pattern: str, said: str) -> None:
    config = describe_words()
    config["config_groups"]["group_0"]["targets"] = [pattern]
    with pytest.raises(CheckpointError, match=said):
        read_packing(config)


def test_a_target_that_is_no_expression_is_a_name_whatever_it_has(tmp_path: Path) -> None:
    config = describe_words()
    config["config_groups"]["group_0"]["targets"] = ["b[(", "a"]
    whole = round_weight(create_weight(), 4, 32, symmetric=True)
    packed = pack_compressed(whole, 4, symmetric=True)
    check_weight(open_packed(tmp_path, config, packed.tensors), packed, 32)
