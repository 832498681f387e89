"""A model of this node that an engine of others computes.

Owns what is refused before anything is sent. Must not know streams or frames.
Read next: `relay` (the caller), `request_body`, `engine_watch`.
"""

import hashlib
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from contracts.errors import (
    ModelCold,
    NoEndpoint,
    PoolSaturated,
    StreamBroken,
    UnsupportedFeature,
)
from contracts.fleet import ModelCard, Task
from contracts.grant import Grant, RetentionClass
from contracts.inference import CountTokensRequest, GenerateRequest
from gpu_pool.server.upstream.engine_errors import to_service_error
from gpu_pool.server.upstream.engine_link import EngineLink
from gpu_pool.server.upstream.engine_load import EngineLoad
from gpu_pool.server.upstream.engine_watch import EngineWatch
from gpu_pool.server.upstream.request_body import (
    EngineRequest,
    create_count_body,
    create_engine_request,
)
from gpu_pool.server.upstream.traits import TRAITS
from gpu_pool.upstream_settings import UpstreamSettings


class _Counted(msgspec.Struct, frozen=True):
    """What the engine answers when it counts."""

    count: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class UpstreamModel:
    """A model that requests can name."""

    def __init__(self, engine: EngineWatch, link: EngineLink, created_unix_s: int) -> None:
        """Nothing is sent; `engine.run` keeps an eye on it."""
        self.engine: Final = engine
        self.link: Final = link
        self._settings = engine.settings
        self._created_unix_s = created_unix_s
        self._revision = _name_revision(engine.settings)

    @property
    def core(self) -> EngineWatch:
        """What computes it."""
        return self.engine

    def prepare(self, request: GenerateRequest, grant: Grant) -> EngineRequest:
        """What is to be sent.

        Raises: `ModelCold`, `PoolSaturated`, `NoEndpoint` (retention), `InvalidRequest`,
        `UnsupportedFeature`.
        """
        self._admit(grant, is_patient=not request.reject_if_busy)
        return create_engine_request(request, grant, self._settings, self.engine.context_window)

    def prepare_count(self, request: CountTokensRequest, grant: Grant) -> tuple[str, bytes]:
        """Where to ask how long a prompt is, and with what.

        Raises: as `prepare`.
        """
        path = TRAITS[self._settings.kind].count_path
        if not path:
            raise UnsupportedFeature("This model's engine does not count tokens.", param="model")
        self._admit(grant, is_patient=True)
        return path, create_count_body(request.prompt, self._settings)

    async def count_tokens(self, path: str, body: bytes) -> int:
        """The length of a prompt, as the engine counts it.

        Raises: what the engine refuses it with.
        """
        status, page = await self.link.fetch(path, body)
        if status != 200:
            raise to_service_error(status, page, self.link.secrets)
        try:
            return msgspec.json.decode(page, type=_Counted).count
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StreamBroken("The model's engine has not counted the prompt.") from error

    def _admit(self, grant: Grant, *, is_patient: bool) -> None:
        """Whether the engine may have a prompt under `grant`, and has room for it; who is not
        patient does not stand in its own line.

        Raises: `ModelCold`, `PoolSaturated`, `NoEndpoint` (retention).
        """
        load = self.engine.load
        if grant.retention is not RetentionClass.STANDARD and not self._settings.keeps_nothing:
            raise NoEndpoint(
                "This node's engine was not declared fit for requests of which nothing may remain."
            )
        if not self.engine.is_ready:
            raise ModelCold("The model's engine is not there at the moment.")
        if load.is_full or (load.is_busy and not is_patient):
            raise PoolSaturated("The model's engine has as many requests as it takes.")

    async def close(self) -> None:
        """Closes the connections to the engine."""
        await self.link.close()

    def describe(self) -> ModelCard:
        """The model as clients may see it."""
        settings = self._settings
        return ModelCard(
            name=settings.name,
            revision=self._revision,
            task=Task.TEXT_GENERATION,
            description=settings.description,
            context_window=self.engine.context_window,
            created_unix_s=self._created_unix_s,
            features=settings.features,
            engine=settings.kind,
            may_keep=not settings.keeps_nothing,
            takes_bad_words=TRAITS[settings.kind].takes_bad_words,
        )


def create_upstream_model(
    settings: UpstreamSettings,
    monotonic_s: Callable[[], float],
    unix_ms: Callable[[], int],
    on_change: Callable[[], None],
) -> UpstreamModel:
    """The model of `settings`, joined from its parts. Raises: `SettingsError`."""
    link = EngineLink(settings)
    load = EngineLoad(settings.max_running, monotonic_s)
    engine = EngineWatch(settings, link, load, monotonic_s, on_change)
    return UpstreamModel(engine, link, unix_ms() // 1000)


def _name_revision(settings: UpstreamSettings) -> str:
    """A name for the weights that is none of our own engine's: nobody knows their digest."""
    named = f"{settings.kind}\0{settings.served_name}"
    return f"{settings.kind}-{hashlib.sha256(named.encode()).hexdigest()[:32]}"
