"""What a node expects models to take, against what takes it once they are loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.ids import ModelName
from gpu_pool.capacity.model_size import read_model_size
from gpu_pool.compute_choice import DeviceChoice, DtypeChoice
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.server.placement.model_size import expect_size
from gpu_pool.weight_origin import OriginFile, WeightOrigin, measure_weights, write_origin
from gpu_pool.weights.config import read_config
from gpu_pool.worker.model_loading import ModelLoader
from tests.gpu_pool.models.deepseek.kimi_checkpoint import let_see, write_kimi
from tests.gpu_pool.models.family_check import Variant, create_driver
from tests.gpu_pool.models.family_checkpoint import copy_checkpoint, write_checkpoint
from tests.gpu_pool.models.gpt_oss.test_mxfp4 import write_packed as write_mxfp4
from tests.gpu_pool.models.packed_checkpoint import write_packed
from tests.gpu_pool.weights.formats.packers import FORMATS, describe_compressed

SIZES = {"max_position_embeddings": 32, "vocab_size": 320}
"""Few positions, of which a loaded model has tables that are small beside real weights."""
LLAMA: Variant = ("llama", SIZES)
NEAR = 0.03
DTYPES = (DtypeChoice.BFLOAT16, DtypeChoice.FLOAT32)
ON_CPU = EngineSettings()
ON_GPU = EngineSettings(device=DeviceChoice.CUDA)
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
BLOCKS_OF_GROUP = describe_compressed(
    "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128]
)
SCALES = {"fp8": "weight_scale_inv", "compressed-tensors": "weight_scale"}


def expect(
    folder: Path,
    dtype: DtypeChoice = DtypeChoice.AUTO,
    engine: EngineSettings = ON_CPU,
) -> int:
    """Bytes of weights, before anything is loaded."""
    model = ServedModelSettings(name=ModelName("@test/made/model"), path=folder, dtype=dtype)
    return expect_size(model, engine).weights_bytes


def load(folder: Path, dtype: DtypeChoice, *, native_kernels: bool = True) -> int:
    """Bytes of weights, loaded on this machine."""
    return create_driver(folder, dtype, native_kernels=native_kernels).executor.info.weights_bytes


def measure(folder: Path, dtype: DtypeChoice, *, is_gpu: bool = True) -> int:
    """What a worker makes room for that has no native kernels."""
    checked = read_config(folder)
    chosen = getattr(torch, dtype)
    loader = ModelLoader(folder, checked.find_packed, chosen, keeps_blocks=is_gpu)
    return loader.measure_bytes(checked.network)


def write_config(folder: Path, **changes: Any) -> None:
    """Changes `config.json`; None takes a field away."""
    path = folder / "config.json"
    fields = json.loads(path.read_bytes()) | changes
    path.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))


def write_blocks(folder: Path, config: dict[str, Any]) -> Path:
    """A checkpoint whose layers' matrices are in fp8 blocks."""
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
    write_checkpoint(folder, "llama", **sizes, dtype=torch.bfloat16)
    state = load_file(folder / "model.safetensors")
    for name, tensor in list(state.items()):
        if tensor.dim() == 2 and ".layers." in name:
            state[name] = tensor.to(torch.float8_e4m3fn)
            scales = torch.ones([-(-size // 128) for size in tensor.shape])
            state[name.removesuffix("weight") + SCALES[config["quant_method"]]] = scales
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    write_config(folder, quantization_config=config)
    return folder


@pytest.mark.parametrize("form", FORMATS)
def test_packed_models_are_expected_to_take_what_they_do(form: str, tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, form, LLAMA)
    for dtype in DTYPES:
        assert expect(packed, dtype) == pytest.approx(load(packed, dtype), rel=NEAR)
    without = EngineSettings(native_kernels=False)
    assert expect(packed, DtypeChoice.BFLOAT16, without) == pytest.approx(
        load(packed, DtypeChoice.BFLOAT16, native_kernels=False), rel=NEAR
    )
    content = (packed / "config.json").read_bytes()
    planned = read_model_size(content, is_loaded=True).weight_bytes
    assert expect(packed, DtypeChoice.FLOAT32, ON_GPU) == pytest.approx(planned, rel=NEAR)
    assert expect(packed, DtypeChoice.BFLOAT16, ON_GPU) == pytest.approx(
        measure(packed, DtypeChoice.BFLOAT16), rel=NEAR
    )


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_that_is_the_embedding_is_counted_once(is_tied: bool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, "llama", **SIZES, tie_word_embeddings=is_tied)
    expected = pytest.approx(expect(folder, DtypeChoice.BFLOAT16), rel=NEAR)
    assert measure(folder, DtypeChoice.BFLOAT16) == expected
    assert load(folder, DtypeChoice.BFLOAT16) == expected


@pytest.mark.parametrize("is_tied", [True, False])
def test_one_that_is_packed_apart_is_counted_twice(is_tied: bool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, "llama", **SIZES, tie_word_embeddings=is_tied)
    loaded = load(folder, DtypeChoice.FLOAT32)
    assert measure(folder, DtypeChoice.FLOAT32, is_gpu=False) == pytest.approx(loaded, rel=NEAR)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_in_mxfp4_are_unpacked(dtype: DtypeChoice, tmp_path: Path) -> None:
    packed, _ = write_mxfp4(tmp_path)
    expected = pytest.approx(measure(packed, dtype, is_gpu=False), rel=NEAR)
    assert expect(packed, dtype) == expected
    assert expect(packed, dtype, ON_GPU) == expected


@pytest.mark.parametrize("config", [BLOCKS, BLOCKS_OF_GROUP])
def test_fp8_blocks_stay_on_a_gpu_alone(config: dict[str, Any], tmp_path: Path) -> None:
    folder = write_blocks(tmp_path, config)
    kept = expect(folder, engine=ON_GPU)
    planned = read_model_size((folder / "config.json").read_bytes(), is_loaded=True)
    assert kept == planned.weight_bytes == measure(folder, DtypeChoice.BFLOAT16)
    for dtype in DTYPES:
        assert expect(folder, dtype) == pytest.approx(load(folder, dtype), rel=NEAR)
    assert kept < 0.65 * expect(folder)


def test_each_group_of_compressed_tensors_has_its_own_bits(tmp_path: Path) -> None:
    four, _ = write_packed(tmp_path / "4", "int4 in groups with zeros", LLAMA)
    eight, _ = write_packed(tmp_path / "8", "int8 in groups", LLAMA)
    path, config = four / "model.safetensors", json.loads((four / "config.json").read_bytes())
    kept = {name: t for name, t in load_file(path).items() if "down_proj" not in name}
    others = load_file(eight / "model.safetensors")
    save_file(kept | {n: t for n, t in others.items() if "down_proj" in n}, path)
    wide = json.loads((eight / "config.json").read_bytes())["quantization_config"]
    group = wide["config_groups"]["group_0"] | {"targets": ["re:.*down_proj"]}
    config["quantization_config"]["config_groups"]["down"] = group
    write_config(four, **config)
    for dtype in DTYPES:
        assert expect(four, dtype) == pytest.approx(load(four, dtype), rel=NEAR)


def test_what_a_text_part_says_counts_where_the_whole_is_silent(tmp_path: Path) -> None:
    """As a Kimi K2.5 says how its experts are packed; what sees counts, too."""
    folder, _ = write_kimi(tmp_path)
    for dtype, engine in ((DtypeChoice.AUTO, ON_CPU), (DtypeChoice.FLOAT32, ON_GPU)):
        alone = expect(folder, dtype, engine)
        seeing = copy_checkpoint(folder, tmp_path / dtype)
        let_see(seeing)
        itemsize = 2 if dtype is DtypeChoice.AUTO else 4
        assert expect(seeing, dtype, engine) == alone + itemsize * (96 * 32 + 128 * 128)


def test_an_encoder_keeps_nothing_packed(tmp_path: Path) -> None:
    packed, plain = write_packed(tmp_path, "awq", LLAMA)
    write_config(packed, architectures=["BertModel"])
    num_bytes = expect(packed, DtypeChoice.BFLOAT16)
    assert num_bytes == pytest.approx(load(plain, DtypeChoice.BFLOAT16), rel=NEAR)


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", DtypeChoice)
def test_plain_weights_are_counted_in_what_is_computed(
    dtype: DtypeChoice, stored: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, "llama", **SIZES, dtype=getattr(torch, stored))
    assert expect(tmp_path, dtype) == pytest.approx(load(tmp_path, dtype), rel=NEAR)


def test_files_that_cannot_be_looked_into_count_as_they_are_stored(tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, "awq", LLAMA)
    stored = measure_weights(packed)
    wide = DtypeChoice.FLOAT32
    for name, damage in {
        "header": lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * stored),
        "bits": lambda folder: write_config(folder, quantization_config={"bits": 3}),
        "no group": lambda folder: write_config(folder, quantization_config=7),
        "config": lambda folder: (folder / "config.json").write_bytes(b"[" * 100_000),
    }.items():
        folder = copy_checkpoint(packed, tmp_path / name)
        assert expect(folder, wide, ON_GPU) > 2 * stored
        damage(folder)
        assert expect(folder, DtypeChoice.BFLOAT16) == measure_weights(folder)


@pytest.mark.parametrize("pattern", ["re:a(", "re:a{99999999999999999999}", "re:" + "(" * 5000])
def test_patterns_that_cannot_be_compiled_do_not_stop_a_node(pattern: str, tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, "int4 in groups with zeros", LLAMA)
    config = json.loads((packed / "config.json").read_bytes())
    assert expect(packed, DtypeChoice.FLOAT32) > 2 * measure_weights(packed)
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = [pattern]
    write_config(packed, **config)
    assert expect(packed, DtypeChoice.BFLOAT16) == measure_weights(packed)


def test_files_to_be_fetched_count_as_they_are_listed_until_they_are_here(tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, "awq", LLAMA)
    expected = expect(packed, DtypeChoice.FLOAT32)
    path = packed / "model.safetensors"
    num_bytes = path.stat().st_size
    file = OriginFile(name=path.name, num_bytes=num_bytes, sha256="0" * 64)
    write_origin(packed, WeightOrigin(url="https://mirror.example/m", files=(file,)))
    assert expect(packed, DtypeChoice.FLOAT32) == expected > 2 * num_bytes
    path.unlink()
    assert expect(packed, DtypeChoice.BFLOAT16) == num_bytes
