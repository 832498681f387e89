"""Which kind of model a folder holds, an encoder or one that generates, joined from its parts.

Read next: `hosted_core` (what both stand on), `served_model`, `served_encoder`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.server.adapters.shelf import AdapterShelf
from gpu_pool.server.core_supervisor import CoreSupervisor
from gpu_pool.server.hosted_core import ColdLimits, HostedCore, ModelFacts
from gpu_pool.server.hosted_model import HostedModel
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import expect_size
from gpu_pool.server.remote.fetched_weights import find_weights
from gpu_pool.server.served_encoder import ServedEncoder
from gpu_pool.server.served_model import create_served_model
from gpu_pool.server.text.encoder_text import load_encoder_text
from gpu_pool.server.text.text_files import TextSources, TextThreads, load_model_text


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every model of a node shares."""

    threads: TextThreads
    """For what takes longer than an event loop may be held up."""
    sources: TextSources
    keeper: PlacementKeeper
    max_cold_wait_s: float
    """How long a request may wait for a core that is coming up."""
    max_cold_waiting: int
    unix_ms: Callable[[], int]
    shelf: AdapterShelf
    weights_token: str | None
    """For servers that weights are fetched from."""


def create_hosted_model(
    model: ServedModelSettings,
    engine: EngineSettings,
    supervisor: CoreSupervisor,
    around: Surroundings,
) -> HostedModel:
    """The model in a folder, in the keeper's books.

    Raises: `UnsupportedFeature`, also for what is larger than the device.
    """
    facts = ModelFacts(
        name=model.name,
        description=model.description,
        created_unix_s=int((model.path / "config.json").stat().st_mtime),
        service_class=model.service_class,
        expected_size=expect_size(model, engine),
        expected_adapter_rank=engine.max_adapter_rank if engine.asked_adapter_bytes != 0 else 0,
    )
    around.keeper.books.check_size(facts.expected_size)
    limits = ColdLimits(around.max_cold_wait_s, around.max_cold_waiting)
    files = find_weights(model.path, around.weights_token)
    core = HostedCore(facts, supervisor, around.keeper, limits, around.unix_ms, files)
    hosted = _join(model, core, around)
    around.keeper.books.add(core)
    return hosted


def _join(model: ServedModelSettings, core: HostedCore, around: Surroundings) -> HostedModel:
    """The core with the text side that its folder asks for. Raises: `UnsupportedFeature`."""
    encoder = load_encoder_text(model.path)
    if encoder is not None:
        return ServedEncoder(core, encoder, around.threads)
    text = load_model_text(model.path, around.threads, around.sources)
    return create_served_model(core, text, around.shelf)
