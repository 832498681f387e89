"""One model of a node: its text side joined with its engine core.

Owns what is checked between a decoded request and a sequence; must not know streams or frames.
Read next: `generation` (the caller), `text.model_text`, `core_supervisor`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contracts.errors import ModelCold
from contracts.fleet import ModelCard, ModelLoad
from contracts.grant import Grant
from contracts.ids import ModelName
from contracts.inference import GenerateRequest
from gpu_pool.server.core_supervisor import CoreSupervisor
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.prepared_sequence import PreparedSequence, describe_sequence
from gpu_pool.server.sampling_limits import check_sampling, resolve_max_tokens
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import MAX_INLINE_CHARS, count_chars

_TASK: Final = "Text Generation"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is said about a model besides what its checkpoint says."""

    name: ModelName
    description: str
    created_unix_s: int


class ServedModel:
    """A model that requests can name."""

    def __init__(
        self,
        facts: ModelFacts,
        text: ModelText,
        supervisor: CoreSupervisor,
        max_cold_wait_s: float,
        unix_ms: Callable[[], int],
    ) -> None:
        """`max_cold_wait_s` bounds the wait for a core that is coming up."""
        self._facts = facts
        self._text = text
        self._max_cold_wait_s = max_cold_wait_s
        self._unix_ms = unix_ms
        self.supervisor: Final = supervisor

    @property
    def is_ready(self) -> bool:
        """True while requests can start at once."""
        return self.supervisor.client is not None

    @property
    def failure(self) -> str | None:
        """Why it has failed for good, for operators; None while it is served or may yet be."""
        return self.supervisor.failure

    def try_prepare(self, request: GenerateRequest, grant: Grant) -> PreparedSequence | None:
        """A sequence, or None when that takes a wait or more time than an event loop has.

        Raises: as `prepare`.
        """
        check_sampling(request.sampling)
        client, ready = self.supervisor.client, self.supervisor.ready
        if client is None or ready is None:
            if request.reject_if_busy:
                raise ModelCold("The model is not loaded on this node at the moment.")
            return None
        if count_chars(request.prompt) > MAX_INLINE_CHARS:
            return None
        token_ids = self._text.encoder.encode(request.prompt, ready.context_window)
        return self._prepare(client, request, grant, token_ids)

    async def prepare(self, request: GenerateRequest, grant: Grant) -> PreparedSequence:
        """A sequence, as soon as the core is there.

        Raises: `InvalidRequest`, `UnsupportedFeature`, `ContextTooLong`, `Forbidden` (beyond the
        grant), `ModelCold`.
        """
        await self._wait_ready(grant)
        assert self.supervisor.ready is not None
        context_window = self.supervisor.ready.context_window
        token_ids = await self._text.encoder.encode_in_thread(request.prompt, context_window)
        client = await self._wait_ready(grant)  # it may have been restarted meanwhile
        return self._prepare(client, request, grant, token_ids)

    def describe(self) -> ModelCard:
        """The model as clients may see it; the revision is empty until it was loaded once."""
        ready = self.supervisor.ready
        return ModelCard(
            name=self._facts.name,
            revision=ready.model_revision if ready else "",
            task=_TASK,
            description=self._facts.description,
            context_window=ready.context_window if ready else self._text.context_window,
            created_unix_s=self._facts.created_unix_s,
        )

    def measure_load(self) -> ModelLoad:
        """How busy it is."""
        load = self.supervisor.load
        return ModelLoad(
            name=self._facts.name,
            is_ready=self.is_ready,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            num_blocks=load.num_blocks,
            num_free_blocks=load.num_free_blocks,
        )

    async def _wait_ready(self, grant: Grant) -> EngineClient:
        """The way to the core, within the grant's deadline and this node's patience."""
        left_s = (grant.deadline_unix_ms - self._unix_ms()) / 1000
        return await self.supervisor.wait_ready(min(left_s, self._max_cold_wait_s))

    def _prepare(
        self,
        client: EngineClient,
        request: GenerateRequest,
        grant: Grant,
        token_ids: tuple[int, ...],
    ) -> PreparedSequence:
        """The sequence of a request whose prompt has become `token_ids`."""
        assert self.supervisor.ready is not None
        max_tokens = resolve_max_tokens(
            request.sampling.max_tokens,
            len(token_ids),
            self.supervisor.ready.context_window,
            grant.max_total_tokens,
        )
        text = self._text.create_stream(request.sampling.stop)
        create = describe_sequence(request, grant, token_ids, max_tokens)
        return PreparedSequence(client, text, len(token_ids), create)
