"""Creates the models of a node one by one, so that a bad one stops none of the others.

Owns which kind of model a folder holds, and what counts as one that cannot be served before its
engine has even started. Read next: `hosted_model`, `core_supervisor` (failures after that).
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from contracts.errors import UnsupportedFeature
from contracts.ids import ModelName
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.server.constraints import ConstraintCompiler
from gpu_pool.server.core_supervisor import CoreSupervisor
from gpu_pool.server.hosted_core import ColdLimits, HostedCore, ModelFacts
from gpu_pool.server.hosted_model import HostedModel
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.movable import ModelSize
from gpu_pool.server.served_encoder import ServedEncoder
from gpu_pool.server.served_model import ServedModel
from gpu_pool.server.text.encoder_text import load_encoder_text
from gpu_pool.server.text.text_files import TextSources, load_model_text
from gpu_pool.settings import EngineSettings, ServedModelSettings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every model of a node shares."""

    threads: Executor
    """For what takes longer than an event loop may be held up."""
    sources: TextSources
    keeper: PlacementKeeper
    cold_limits: ColdLimits
    unix_ms: Callable[[], int]


def create_hosted_model(
    model: ServedModelSettings,
    engine: EngineSettings,
    supervisor: CoreSupervisor,
    around: Surroundings,
) -> HostedModel:
    """The model in a folder, an encoder or one that generates. Raises: `UnsupportedFeature`."""
    facts = ModelFacts(
        name=model.name,
        description=model.description,
        created_unix_s=int((model.path / "config.json").stat().st_mtime),
        service_class=model.service_class,
        expected_size=expect_size(model, engine),
    )
    core = HostedCore(facts, supervisor, around.keeper, around.cold_limits, around.unix_ms)
    encoder = load_encoder_text(model.path)
    if encoder is not None:
        return ServedEncoder(core, encoder, around.threads)
    text = load_model_text(model.path, around.threads, around.sources)
    return ServedModel(core, text, ConstraintCompiler(text))


def expect_size(model: ServedModelSettings, engine: EngineSettings) -> ModelSize:
    """What a model will take as far as its files tell: weights as they are stored, or wider."""
    stored = sum(path.stat().st_size for path in model.path.glob("*.safetensors"))
    widening = 2 if model.dtype is DtypeChoice.FLOAT32 else 1
    return ModelSize(stored * widening, engine.kv_bytes)


def create_models(
    settings: Iterable[ServedModelSettings],
    create_model: Callable[[ServedModelSettings], HostedModel],
) -> tuple[dict[ModelName, HostedModel], dict[ModelName, str]]:
    """The models whose files can be read as text, and the reasons of the others."""
    models: dict[ModelName, HostedModel] = {}
    refused: dict[ModelName, str] = {}
    for model in settings:
        log = structlog.get_logger().bind(model=model.name)
        try:
            models[model.name] = create_model(model)
        except UnsupportedFeature as error:
            log.error("the model cannot be served", reason=error.message)
            refused[model.name] = error.message
        except Exception as error:  # a checkpoint may be malformed in ways nobody has thought of
            log.exception("the model cannot be served")
            refused[model.name] = f"{type(error).__name__}: {error}"
    return models, refused
