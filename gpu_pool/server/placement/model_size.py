"""What a model takes of a node's memory.

Read next: `movable`, `room` (who has to go for it).
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpu_pool.adapter_share import choose_adapter_bytes
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.settings import EngineSettings, ServedModelSettings
from gpu_pool.weight_origin import measure_weights


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Units: bytes."""

    weights_bytes: int
    kv_bytes: int
    """KV memory, and what is kept free for adapters."""


class _StoredDtype(msgspec.Struct, frozen=True):
    """What is read of `config.json`, which has one of both names."""

    dtype: str | None = None
    torch_dtype: str | None = None


def expect_size(model: ServedModelSettings, engine: EngineSettings) -> ModelSize:
    """What a model will take as far as its files tell: weights as they are stored, or wider.

    Raises: `UnsupportedFeature` when it is malformed where they are to be fetched from.
    """
    stored = measure_weights(model.path)
    is_wide = "float32" in _read_dtypes(model.path / "config.json")
    is_widened = model.dtype is DtypeChoice.FLOAT32 and not is_wide
    weights_bytes = stored * 2 if is_widened else stored
    adapter_bytes = choose_adapter_bytes(engine.asked_adapter_bytes, weights_bytes)
    return ModelSize(weights_bytes, engine.kv_bytes + adapter_bytes)


def _read_dtypes(config: Path) -> tuple[str | None, ...]:
    """What the file says of dtypes; nothing where it is malformed, which its loader will tell."""
    try:
        read = msgspec.json.decode(config.read_bytes(), type=_StoredDtype)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
        return ()
    return read.dtype, read.torch_dtype
