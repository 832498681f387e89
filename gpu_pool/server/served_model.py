"""One model of a node: its text side joined with its engine core.

Owns what is checked between a decoded request and a sequence; must not know streams or frames.
Read next: `generation` (the caller), `text.model_text`, `hosted_core`.
"""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import msgspec

from contracts.fleet import ModelCard, ModelFeature, Task
from contracts.grant import Grant
from contracts.inference import (
    ChatPrompt,
    CountTokensRequest,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    ToolChoiceMode,
)
from gpu_pool.node_clock import read_node_ms
from gpu_pool.server.adapters.adapter_supply import (
    AdapterLease,
    AdapterShelf,
    AdapterSupply,
    PieceLine,
)
from gpu_pool.server.constraints import ConstraintCompiler
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.hosted_core import HostedCore
from gpu_pool.server.prepared_request import PreparedRequest
from gpu_pool.server.sampling_limits import (
    MAX_CHOICES,
    check_echo,
    check_request,
    check_resumption,
    fit_scores,
    resolve_max_tokens,
)
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import MAX_INLINE_WORDS, EncodedPrompt


class ServedModel:
    """A model that requests can name."""

    def __init__(
        self,
        core: HostedCore,
        text: ModelText,
        constraints: ConstraintCompiler,
        adapters: AdapterSupply,
    ) -> None:
        """Nothing is started."""
        self.core: Final = core
        self._text = text
        self._constraints = constraints
        self._adapters = adapters

    def try_prepare(self, request: GenerateRequest, grant: Grant) -> PreparedRequest | None:
        """What is to start, or None when that takes a wait or more time than an event loop has.

        Raises: as `prepare`.
        """
        check_request(request)
        self._adapters.check(request)
        client = self.core.find_client(reject_if_busy=request.reject_if_busy)
        ready = self.core.ready
        if client is None or ready is None:
            return None
        if request.further_prompts or request.is_constrained:
            return None
        if not self._text.encoder.takes_inline(request.prompt):
            return None
        if len(request.bad_words) > MAX_INLINE_WORDS:
            return None
        lease = self._adapters.find(request, grant)
        if lease is None and request.adapter is not None:
            return None
        with _kept(lease):
            prompt = self._text.encoder.encode(choose_prompt(request), ready.context_window)
            request = self._text.encoder.spell(request)
            request = fit_scores(request, len(prompt.token_ids), ready.context_window)
            prepared = self._prepare(client, request, grant, prompt, None)
            return replace(prepared, lease=lease) if lease else prepared

    async def prepare(
        self, request: GenerateRequest, grant: Grant, line: PieceLine | None = None
    ) -> PreparedRequest:
        """What is to start, as soon as the core is there, and its adapter's file, which may come
        over `line`. Whoever gets it releases it.

        Raises: `InvalidRequest`, `UnsupportedFeature`, `ContextTooLong`, `Forbidden` (beyond the
        grant), `ModelCold`, `PoolSaturated`, `AdapterUnsupported`.
        """
        with self.core.preparing():
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await self.core.wait_client(grant)
            cold_s = loop.time() - began_s
            ready = self.core.ready
            assert ready is not None
            encoder = self._text.encoder
            prompt = await encoder.encode_in_thread(
                choose_prompt(request), ready.context_window, grant.account_id
            )
            further = [
                await encoder.encode_in_thread(one, ready.context_window, grant.account_id)
                for one in request.further_prompts
            ]
            request = await encoder.spell_in_thread(request, grant.account_id)
            num_tokens = sum(len(one.token_ids) for one in (prompt, *further))
            request = fit_scores(request, num_tokens, ready.context_window)
            grammar = await self._constraints.compile(
                request, prompt, ready.vocab_size, grant.account_id
            )
            self._adapters.check(request)  # the core may take less than was expected of it
            lease = await self._adapters.obtain(request, grant, line)
            with _kept(lease):
                client = await self.core.wait_client(grant)  # it may have gone meanwhile
                prepared = self._prepare(client, request, grant, prompt, grammar)
                prepared = replace(prepared, cold_s=cold_s, lease=lease)
                return replace(prepared, further=self._prepare_further(prepared, further))

    async def count_tokens(self, request: CountTokensRequest, grant: Grant) -> int:
        """The length of a prompt, template and tools included; needs no core.

        Raises: `InvalidRequest`, `UnsupportedFeature`, `ContextTooLong`.
        """
        encoder = self._text.encoder
        prompt = await encoder.encode_in_thread(
            request.prompt, self._text.context_window, grant.account_id
        )
        return len(prompt.token_ids)

    async def close(self) -> None:
        """Ends what runs beside the core."""
        await self._constraints.close()

    def describe(self) -> ModelCard:
        """The model as clients may see it; the revision is empty until it was loaded once."""
        facts, ready = self.core.facts, self.core.ready
        return ModelCard(
            name=facts.name,
            revision=self.core.revision,
            task=Task.TEXT_GENERATION,
            description=facts.description,
            context_window=ready.context_window if ready else self._text.context_window,
            created_unix_s=facts.created_unix_s,
            features=list_features(self._text),
            max_prompts=MAX_CHOICES,
            max_adapter_rank=self._adapters.max_rank,
            takes_bad_words=True,
        )

    def _prepare(
        self,
        client: EngineClient,
        request: GenerateRequest,
        grant: Grant,
        prompt: EncodedPrompt,
        grammar: str | None,
    ) -> PreparedRequest:
        """What is to start of a request whose prompt is encoded."""
        assert self.core.ready is not None
        echo = self._find_echo(request)
        check_echo([echo], request.num_choices)
        check_resumption(request, self.core.ready.vocab_size)
        max_tokens = resolve_max_tokens(
            request.sampling,
            len(prompt.token_ids),
            self.core.ready.context_window,
            grant.max_total_tokens,
        )
        return PreparedRequest(
            client=client,
            text=self._text,
            request=request,
            grant=grant,
            prompt=prompt,
            max_tokens=max_tokens,
            deadline_ms=read_node_ms() + self.core.find_left_ms(grant),
            grammar=grammar,
            echo=echo,
            ready=self.core.ready,
        )

    def _prepare_further(
        self, first: PreparedRequest, encoded: Sequence[EncodedPrompt]
    ) -> tuple[PreparedRequest, ...]:
        """The request's other prompts, ready like the first. Raises: as `prepare`."""
        request, further = first.request, list[PreparedRequest]()
        for place, (prompt, ids) in enumerate(zip(request.further_prompts, encoded, strict=True)):
            alone = msgspec.structs.replace(request, prompt=prompt, further_prompts=())
            prepared = self._prepare(first.client, alone, first.grant, ids, None)
            first_choice = (place + 1) * request.num_choices
            further.append(replace(prepared, first_choice=first_choice, lease=first.lease))
        check_echo([one.echo for one in (first, *further)], request.num_choices)
        return tuple(further)

    def _find_echo(self, request: GenerateRequest) -> str:
        """The prompt's own text where the answer is to begin with it."""
        match request.prompt:
            case TextPrompt(text=text) if request.echoes_prompt:
                return text
            case TokenPrompt(token_ids=token_ids) if request.echoes_prompt:
                return self._text.decode(token_ids)
            case _:
                return ""


def create_served_model(core: HostedCore, text: ModelText, shelf: AdapterShelf) -> ServedModel:
    """The model on `core`, with what stands beside it; `shelf` is the node's."""
    return ServedModel(core, text, ConstraintCompiler(text), AdapterSupply(core, shelf))


@contextmanager
def _kept(lease: AdapterLease | None) -> Generator[None]:
    """Keeps what was lent, unless nobody gets the request that it is for."""
    try:
        yield
    except BaseException:
        if lease is not None:
            lease.release()
        raise


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
