"""What a model takes of a node's memory.

Read next: `movable`, `room` (who has to go for it).
"""

from dataclasses import dataclass
from pathlib import Path

from gpu_pool.adapter_share import choose_adapter_bytes
from gpu_pool.compute_choice import DeviceChoice, DtypeChoice
from gpu_pool.encoder_architectures import ENCODER_ARCHITECTURES
from gpu_pool.kernels.cpu.levels import read_cpu_flags
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weight_origin import list_weight_files, measure_weights
from gpu_pool.weights.config_header import ConfigHeader, read_config_header
from gpu_pool.weights.header import TensorEntry, read_header
from gpu_pool.weights.loaded_size import LoadedForm, measure_loaded


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Units: bytes."""

    weights_bytes: int
    kv_bytes: int
    """KV memory, and what is kept free for adapters."""


def expect_size(model: ServedModelSettings, engine: EngineSettings) -> ModelSize:
    """What a model will take as far as its files tell: weights in what they become when they are
    loaded. Of files that are yet to be fetched, or malformed, as they are stored, or wider.

    Raises: `UnsupportedFeature` when it is malformed where they are to be fetched from.
    """
    config = _read_config(model.path / "config.json")
    weights_bytes = _measure_loaded(model, engine, config) or _measure_stored(model, config)
    adapter_bytes = choose_adapter_bytes(engine.asked_adapter_bytes, weights_bytes)
    return ModelSize(weights_bytes, (engine.kv_least_bytes or engine.kv_bytes) + adapter_bytes)


def _measure_loaded(
    model: ServedModelSettings, engine: EngineSettings, config: ConfigHeader | None
) -> int | None:
    """Bytes by the files' headers; None where these do not tell, which their loader will."""
    if config is None:
        return None
    form = _choose_form(model.dtype, engine, config)
    tensors: dict[str, TensorEntry] = {}
    try:
        for path in list_weight_files(model.path):
            tensors |= read_header(path).tensors
        return measure_loaded(tensors, config.quantization_config, form)
    except CheckpointError:
        return None


def _choose_form(choice: DtypeChoice, engine: EngineSettings, config: ConfigHeader) -> LoadedForm:
    """What the engine makes of weights: an encoder's are always unpacked."""
    silent = "float32" if config.quantization_config is None else "bfloat16"
    stored = config.dtype or silent
    dtype = stored if choice is DtypeChoice.AUTO else choice
    itemsize = 2 if dtype == "bfloat16" else 4  # fp16 is computed in fp32
    if not set(config.architectures).isdisjoint(ENCODER_ARCHITECTURES):
        return LoadedForm(itemsize)
    is_gpu = engine.device is DeviceChoice.CUDA
    has_kernels = engine.native_kernels and itemsize == 2 and read_cpu_flags() is not None
    return LoadedForm(itemsize, keeps_int4=has_kernels and not is_gpu, keeps_blocks=is_gpu)


def _measure_stored(model: ServedModelSettings, config: ConfigHeader | None) -> int:
    """Bytes by the files' sizes. Raises: as `expect_size`."""
    stored = measure_weights(model.path)
    is_wide = config is not None and config.dtype == "float32"
    return stored * 2 if model.dtype is DtypeChoice.FLOAT32 and not is_wide else stored


def _read_config(path: Path) -> ConfigHeader | None:
    """What the file says; None where it is malformed, which its loader will tell."""
    try:
        return read_config_header(path.read_bytes())
    except (CheckpointError, OSError):
        return None
