"""Packed weights: found by name, refused where they do not fit, unpacked to the right numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.packing import UnpackedSource, read_packing
from gpu_pool.weights.reader import ParameterReader
from gpu_pool.worker.model_memory import CpuPlaces
from tests.gpu_pool.weights.formats.packers import FORMATS

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FP8 = {"quant_method": "fp8", "weight_block_size": [4, 8]}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": INT4, "targets": ["Linear"]}},
}


def unpack(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> UnpackedSource:
    """A source over a checkpoint of these tensors."""
    save_file(tensors, folder / "model.safetensors")
    return UnpackedSource(Checkpoint(folder), read_packing(config))


def test_fp8_blocks_are_multiplied_by_their_factors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = torch.randn(10, 20).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 3) + 0.5
    tensors = {"a.weight": weight, "a.weight_scale_inv": scales, "norm": torch.ones(3)}
    source = unpack(tmp_path, FP8, tensors)
    assert source.shapes == {"a.weight": (10, 20), "norm": (3,)}
    assert source.dtypes == {"a.weight": "BF16", "norm": "F32"}
    found = source.read("a.weight")
    for row in range(10):
        for column in range(20):
            expected = weight[row, column].float() * scales[row // 4, column // 8]
            assert found[row, column] == expected
    assert source.read("norm").tolist() == [1, 1, 1]


@pytest.mark.parametrize("size", [20, 1 << 31, 1 << 70])
def test_blocks_larger_than_a_matrix_take_no_more_memory_than_it(size: int, tmp_path: Path) -> None:
    weight, config = (
        torch.ones(10, 20).to(torch.float8_e4m3fn),
        FP8 | {"weight_block_size": [size] * 2},
    )
    tensors = {"a.weight": weight, "a.weight_scale_inv": torch.full((1, 1), 0.5)}
    assert unpack(tmp_path, config, tensors).read("a.weight").eq(0.5).all()


def test_int4_words_hold_eight_numbers_from_the_lowest_bits_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    numbers = torch.randint(-8, 8, (3, 64))
    words = torch.zeros(3, 8, dtype=torch.int64)
    for column in range(64):
        words[:, column // 8] |= (numbers[:, column] + 8) << (4 * (column % 8))
    packed = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    scales = torch.rand(3, 2)
    tensors = {
        "a.weight_packed": packed,
        "a.weight_scale": scales,
        "a.weight_shape": torch.tensor([3, 64]),
    }
    found = unpack(tmp_path, COMPRESSED, tensors).read("a.weight")
    expected = numbers * scales.repeat_interleave(32, 1)
    assert torch.equal(found, expected)


def test_mxfp4_blocks_hold_the_low_half_first(tmp_path: Path) -> None:
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0, 0] = 0x1 | 0xA << 4  # 0.5, then -1
    blocks[0, 0, 0, 1] = 0x7  # 6, then 0
    scales = torch.full((1, 1, 1), 129, dtype=torch.uint8)  # times four
    source = unpack(tmp_path, {"quant_method": "mxfp4"}, {"w_blocks": blocks, "w_scales": scales})
    assert source.shapes == {"w": (1, 32, 1)}
    assert source.read("w").flatten().tolist() == [2.0, -4.0, 24.0] + [0.0] * 29


@pytest.mark.parametrize(
    ("config", "tensors", "reason"),
    [
        (FP8, {"a": torch.zeros(8, 8), "a_scale_inv": torch.ones(1, 1)}, "a_scale_inv"),
        (
            {"quant_method": "mxfp4"},
            {"w_blocks": torch.zeros(1, 4, 2, 16, dtype=torch.uint8)},
            "w_scales",
        ),
        (COMPRESSED, {"a_packed": torch.zeros(4, 4, dtype=torch.int32)}, "a_scale"),
        (
            COMPRESSED,
            {"a_packed": torch.zeros(4, 4, dtype=torch.int32), "a_scale": torch.ones(4, 2)},
            "`a_scale` with a factor for every 32 numbers",
        ),
        (
            COMPRESSED,
            {"a_packed": torch.zeros(4, 5, dtype=torch.int32), "a_scale": torch.ones(4, 2)},
            "of `a`, of shape .4, 40.",
        ),
        (
            COMPRESSED,
            {"a_packed": torch.zeros(4, 4, dtype=torch.int32), "a_scale": torch.ones(4, 1)},
            "a_shape",
        ),
    ],
)
def test_pieces_that_do_not_fit_are_refused_by_name(
    config: dict[str, Any], tensors: dict[str, Tensor], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        unpack(tmp_path, config, tensors)


@pytest.mark.parametrize("form", ["gptq of 4 bits", "gptq of 8 bits", "awq", "int4 per channel"])
def test_a_weight_that_is_there_packed_and_plain_is_refused(form: str, tmp_path: Path) -> None:
    config, pack = FORMATS[form]
    pieces = {f"a.{end}": piece for end, piece in pack(torch.randn(32, 64)).tensors.items()}
    assert unpack(tmp_path, config, pieces).shapes["a.weight"] == (32, 64)
    with pytest.raises(CheckpointError, match=r"`a\.weight"):
        unpack(tmp_path, config, pieces | {"a.weight": torch.ones(4, 4)})


def test_packed_numbers_of_another_count_are_refused(tmp_path: Path) -> None:
    tensors = {
        "a_packed": torch.zeros(4, 4, dtype=torch.int32),
        "a_scale": torch.ones(4, 1),
        "a_shape": torch.tensor([4, 30]),
    }
    with pytest.raises(CheckpointError, match="not supported"):
        unpack(tmp_path, COMPRESSED, tensors).read("a")


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        COMPRESSED | {"format": "float-quantized"},
        COMPRESSED | {"config_groups": {}},
        COMPRESSED | {"config_groups": {"g": {"weights": INT4 | {"group_size": 0}}}},
        COMPRESSED | {"config_groups": {"g": {"weights": INT4}, "h": {"weights": None}}},
        {},
    ],
)
def test_other_ways_of_packing_are_refused_with_what_is_supported(config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="Supported are mxfp4, fp8"):
        read_packing(config)


def test_a_malformed_description_is_refused() -> None:
    with pytest.raises(CheckpointError, match="quantization_config"):
        read_packing({"quant_method": "fp8", "weight_block_size": "big"})


@pytest.mark.parametrize("form", FORMATS)
def test_ranks_hold_parts_of_the_unpacked_whole(form: str, tmp_path: Path) -> None:
    config, pack = FORMATS[form]
    packed = pack(torch.randn(16, 64, generator=torch.Generator().manual_seed(4)))
    tensors = {f"a.{ending}": piece for ending, piece in packed.tensors.items()}
    part = CheckpointTensor("a.weight", (16, 64))
    for split, dim in ((Split.ROWS, 0), (Split.COLUMNS, 1)):
        source = unpack(tmp_path, config, tensors)
        readers = [
            ParameterReader(
                source,
                {"a": ParameterSource((part,), split)},
                frozenset(),
                dtype=torch.float32,
                join=CpuPlaces().join,
                rank=rank,
                num_ranks=2,
            )
            for rank in (0, 1)
        ]
        for reader in readers:
            reader.expect_all()
        assert torch.equal(torch.cat([r.read("a") for r in readers], dim), packed.weight)


@pytest.mark.parametrize("form", FORMATS)
def test_a_packed_weight_of_another_shape_than_the_network_has_is_refused(
    form: str, tmp_path: Path
) -> None:
    config, pack = FORMATS[form]
    packed = pack(torch.randn(16, 64, generator=torch.Generator().manual_seed(4)))
    source = unpack(tmp_path, config, {f"a.{end}": p for end, p in packed.tensors.items()})
    wanted = {"a": ParameterSource((CheckpointTensor("a.weight", (16, 32)),), Split.WHOLE)}
    with pytest.raises(CheckpointError, match=r"`a\.weight` has shape \[16, 64\]"):
        ParameterReader(source, wanted, frozenset(), dtype=torch.float32, join=CpuPlaces().join)
