"""Creates the models of a node one by one, so that a bad one stops none of the others.

Owns what counts as a model that cannot be served before its engine has even started; must not know
how a model is made. Read next: `served_model`, `core_supervisor` (failures after that).
"""

from collections.abc import Callable, Iterable

import structlog

from contracts.errors import UnsupportedFeature
from contracts.ids import ModelName
from gpu_pool.server.served_model import ServedModel
from gpu_pool.settings import ServedModelSettings


def create_models(
    settings: Iterable[ServedModelSettings],
    create_model: Callable[[ServedModelSettings], ServedModel],
) -> tuple[dict[ModelName, ServedModel], dict[ModelName, str]]:
    """The models whose files can be read as text, and the reasons of the others."""
    models: dict[ModelName, ServedModel] = {}
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
