"""One model of a node: its text side joined with its engine core.

Owns what is checked between a decoded request and a sequence; must not know streams or frames.
Read next: `generation` (the caller), `text.model_text`, `core_supervisor`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from contracts.errors import ModelCold
from contracts.fleet import ModelCard, ModelFeature, ModelLoad, Task
from contracts.grant import Grant
from contracts.ids import ModelName
from contracts.inference import (
    ChatPrompt,
    CountTokensRequest,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    ToolChoiceMode,
)
from gpu_pool.server.constraints import ConstraintCompiler, is_constrained
from gpu_pool.server.core_supervisor import CoreSupervisor
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.prepared_request import PreparedRequest
from gpu_pool.server.sampling_limits import check_request, resolve_max_tokens
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import MAX_INLINE_CHARS, EncodedPrompt, measure_prompt


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
        constraints: ConstraintCompiler,
        supervisor: CoreSupervisor,
        max_cold_wait_s: float,
        unix_ms: Callable[[], int],
    ) -> None:
        """`max_cold_wait_s` bounds the wait for a core that is coming up."""
        self._facts = facts
        self._text = text
        self._constraints = constraints
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

    def try_prepare(self, request: GenerateRequest, grant: Grant) -> PreparedRequest | None:
        """What is to start, or None when that takes a wait or more time than an event loop has.

        Raises: as `prepare`.
        """
        check_request(request)
        client, ready = self.supervisor.client, self.supervisor.ready
        if client is None or ready is None:
            if request.reject_if_busy:
                raise ModelCold("The model is not loaded on this node at the moment.")
            return None
        if measure_prompt(request.prompt) > MAX_INLINE_CHARS or is_constrained(request):
            return None
        prompt = self._text.encoder.encode(choose_prompt(request), ready.context_window)
        return self._prepare(client, request, grant, prompt, None)

    async def prepare(self, request: GenerateRequest, grant: Grant) -> PreparedRequest:
        """What is to start, as soon as the core is there.

        Raises: `InvalidRequest`, `UnsupportedFeature`, `ContextTooLong`, `Forbidden` (beyond the
        grant), `ModelCold`, `PoolSaturated`.
        """
        await self._wait_ready(grant)
        ready = self.supervisor.ready
        assert ready is not None
        encoder = self._text.encoder
        prompt = await encoder.encode_in_thread(choose_prompt(request), ready.context_window)
        grammar = await self._constraints.compile(request, prompt, ready.vocab_size)
        client = await self._wait_ready(grant)  # it may have been restarted meanwhile
        return self._prepare(client, request, grant, prompt, grammar)

    async def count_tokens(self, request: CountTokensRequest) -> int:
        """The length of a prompt, template and tools included; needs no core.

        Raises: `InvalidRequest`, `UnsupportedFeature`, `ContextTooLong`.
        """
        encoder = self._text.encoder
        prompt = await encoder.encode_in_thread(request.prompt, self._text.context_window)
        return len(prompt.token_ids)

    async def close(self) -> None:
        """Ends what runs beside the core."""
        await self._constraints.close()

    def describe(self) -> ModelCard:
        """The model as clients may see it; the revision is empty until it was loaded once."""
        ready = self.supervisor.ready
        return ModelCard(
            name=self._facts.name,
            revision=ready.model_revision if ready else "",
            task=Task.TEXT_GENERATION,
            description=self._facts.description,
            context_window=ready.context_window if ready else self._text.context_window,
            created_unix_s=self._facts.created_unix_s,
            features=list_features(self._text),
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
            block_size=self.supervisor.ready.block_size if self.supervisor.ready else 16,
            num_queued_tokens=load.num_queued_tokens,
            prefill_tokens_per_s=round(load.prefill_per_s, 1),
            decode_tokens_per_s=round(load.decode_per_s, 1),
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
        prompt: EncodedPrompt,
        grammar: str | None,
    ) -> PreparedRequest:
        """What is to start of a request whose prompt is encoded."""
        assert self.supervisor.ready is not None
        max_tokens = resolve_max_tokens(
            request.sampling,
            len(prompt.token_ids),
            self.supervisor.ready.context_window,
            grant.max_total_tokens,
        )
        return PreparedRequest(
            client=client,
            text=self._text,
            request=request,
            grant=grant,
            prompt=prompt,
            max_tokens=max_tokens,
            grammar=grammar,
            echo=self._find_echo(request),
        )

    def _find_echo(self, request: GenerateRequest) -> str:
        """The prompt's own text where the answer is to begin with it."""
        match request.prompt:
            case TextPrompt(text=text) if request.echoes_prompt:
                return text
            case TokenPrompt(token_ids=token_ids) if request.echoes_prompt:
                return self._text.decode(token_ids)
            case _:
                return ""


def create_served_model(
    facts: ModelFacts,
    text: ModelText,
    supervisor: CoreSupervisor,
    max_cold_wait_s: float,
    unix_ms: Callable[[], int],
) -> ServedModel:
    """A model with what compiles constraints for it; nothing is started."""
    constraints = ConstraintCompiler(text)
    return ServedModel(facts, text, constraints, supervisor, max_cold_wait_s, unix_ms)


def choose_prompt(request: GenerateRequest) -> Prompt:
    """The prompt as the model is to see it: without tools that may not be called."""
    prompt = request.prompt
    is_without = request.tool_choice.mode is ToolChoiceMode.NONE
    if is_without and isinstance(prompt, ChatPrompt) and prompt.tools:
        return msgspec.structs.replace(prompt, tools=())
    return prompt


def list_features(text: ModelText) -> tuple[ModelFeature, ...]:
    """What the model's answers can hold besides text."""
    features: list[ModelFeature] = []
    if text.form.takes_tools and text.form.calls is not None:
        features.append(ModelFeature.FUNCTION_CALLING)
    if text.form.thinks:
        features.append(ModelFeature.REASONING)
    return tuple(features)
