"""Creates the models of a node one by one, so that a bad one stops none of the others.

Owns what counts as a model that cannot be served before its engine has even started.
Read next: `model_kinds`, `core_supervisor` (failures after that), `upstream.upstream_model` (models
that engines of others compute).
"""

import time
from collections.abc import Callable

import structlog

from contracts.errors import UnsupportedFeature
from contracts.ids import ModelName
from gpu_pool.server.adapters.shelf import AdapterShelf
from gpu_pool.server.core_supervisor import CreateSupervisor
from gpu_pool.server.hosted_model import HostedModel
from gpu_pool.server.model_kinds import Surroundings, create_hosted_model
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.text.text_files import TextSources
from gpu_pool.server.text.text_threads import TextThreads
from gpu_pool.server.tier_folders import clean_tier_folders
from gpu_pool.server.upstream.upstream_model import create_upstream_model
from gpu_pool.settings import PoolSettings


def create_models(
    settings: PoolSettings,
    create_supervisor: CreateSupervisor,
    keeper: PlacementKeeper,
    threads: TextThreads,
    sources: TextSources,
    unix_ms: Callable[[], int],
    note_change: Callable[[], None],
    shelf: AdapterShelf,
) -> tuple[dict[ModelName, HostedModel], dict[ModelName, str]]:
    """The models whose files can be read as text, and the reasons of the others.

    `threads` do what takes longer than an event loop may be held up; `note_change` is called when
    an engine of others comes or goes; `shelf` has the adapters' files.
    Raises: `SettingsError` (an engine's key or certificates).
    """
    around = Surroundings(
        threads,
        sources,
        keeper,
        settings.max_cold_wait_s,
        settings.max_cold_waiting,
        unix_ms,
        shelf,
        None if settings.weights_token is None else settings.weights_token.reveal(),
    )
    clean_tier_folders(settings)
    models: dict[ModelName, HostedModel] = {}
    refused: dict[ModelName, str] = {}
    for model in settings.models:
        log = structlog.get_logger().bind(model=model.name)
        engine = model.engine or settings.engine
        try:
            supervisor = create_supervisor(model, engine)
            models[model.name] = create_hosted_model(model, engine, supervisor, around)
        except UnsupportedFeature as error:
            log.error("the model cannot be served", reason=error.message)
            refused[model.name] = error.message
        except Exception as error:  # a checkpoint may be malformed in ways nobody has thought of
            log.exception("the model cannot be served")
            refused[model.name] = f"{type(error).__name__}: {error}"
    for upstream in settings.upstreams:
        models[upstream.name] = create_upstream_model(
            upstream, time.monotonic, unix_ms, note_change
        )
    return models, refused
