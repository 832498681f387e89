"""What a model takes of a node's memory.

Read next: `movable`, `room` (who has to go for it).
"""

from dataclasses import dataclass

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.settings import EngineSettings, ServedModelSettings


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Units: bytes."""

    weights_bytes: int
    kv_bytes: int


def expect_size(model: ServedModelSettings, engine: EngineSettings) -> ModelSize:
    """What a model will take as far as its files tell: weights as they are stored, or wider."""
    stored = sum(path.stat().st_size for path in model.path.glob("*.safetensors"))
    widening = 2 if model.dtype is DtypeChoice.FLOAT32 else 1
    return ModelSize(stored * widening, engine.kv_bytes)
