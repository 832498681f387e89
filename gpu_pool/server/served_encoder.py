"""One encoder of a node: its text side joined with its engine core.

Owns what is checked between a decoded request and its texts in the core; must not know streams or
frames. Read next: `encoding` (the caller), `text.encoder_text`, `hosted_core`.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from contracts.encoding import MAX_INPUTS, EncodeRequest, EncoderTask
from contracts.errors import ContextTooLong, InvalidRequest, UnsupportedFeature
from contracts.fleet import ModelCard, Task
from contracts.grant import Grant
from gpu_pool.engine.messages import AddTexts
from gpu_pool.plan import SequenceId
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.hosted_core import HostedCore
from gpu_pool.server.text.encoder_text import EncodedText, EncoderText
from gpu_pool.server.text.text_threads import TextThreads

MAX_INLINE_CHARS: Final = 4096
"""Of all texts together; more is tokenised in a thread."""
_TASKS: Final = {
    EncoderTask.EMBED: Task.TEXT_EMBEDDINGS,
    EncoderTask.RERANK: Task.RERANKER,
    EncoderTask.CLASSIFY: Task.TEXT_CLASSIFICATION,
}


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """Texts that may start: checked, tokenised, and with a core to go to."""

    client: EngineClient
    request: EncodeRequest
    grant: Grant
    texts: tuple[EncodedText, ...]
    encoder: EncoderText
    cold_s: float = 0.0
    """How long it has waited for the core."""

    @property
    def num_tokens(self) -> int:
        """Of all texts together."""
        return sum(len(text.token_ids) for text in self.texts)

    def describe(self, sequence_id: SequenceId) -> AddTexts:
        """What the engine is told."""
        return AddTexts(
            sequence_id,
            self.grant.account_id,
            tuple(text.token_ids for text in self.texts),
            tuple(text.num_query_tokens for text in self.texts),
            self.request.pooling or self.encoder.facts.pooling,
            self.grant.priority,
            self.request.reject_if_busy,
        )


class ServedEncoder:
    """An encoder that requests can name."""

    def __init__(self, core: HostedCore, text: EncoderText, threads: TextThreads) -> None:
        """`threads` tokenise."""
        self.core: Final = core
        self._text = text
        self._threads = threads

    def try_prepare(self, request: EncodeRequest, grant: Grant) -> PreparedTexts | None:
        """What is to start, or None when that takes a wait or more time than an event loop has.

        Raises: as `prepare`.
        """
        self._check(request)
        client = self.core.find_client(reject_if_busy=request.reject_if_busy)
        if client is None or _count_chars(request) > MAX_INLINE_CHARS:
            return None
        return PreparedTexts(client, request, grant, self._encode(request, grant), self._text)

    async def prepare(self, request: EncodeRequest, grant: Grant) -> PreparedTexts:
        """What is to start, as soon as the core is there.

        Raises: `InvalidRequest`, `UnsupportedFeature`, `ContextTooLong`, `ModelCold`.
        """
        with self.core.preparing():
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await self.core.wait_client(grant)
            cold_s = loop.time() - began_s
            texts = await self._threads.run(grant.account_id, self._encode, request, grant)
            client = await self.core.wait_client(grant)  # it may have gone meanwhile
            return PreparedTexts(client, request, grant, texts, self._text, cold_s)

    async def close(self) -> None:
        """Nothing runs beside the core."""

    def describe(self) -> ModelCard:
        """The model as clients may see it; the revision is empty until it was loaded once."""
        facts, text_facts = self.core.facts, self._text.facts
        return ModelCard(
            name=facts.name,
            revision=self.core.revision,
            task=_TASKS[text_facts.task],
            description=facts.description,
            context_window=self._find_window(),
            created_unix_s=facts.created_unix_s,
            output_dimensions=text_facts.output_dimensions,
            labels=text_facts.labels,
        )

    def _find_window(self) -> int:
        """Tokens of one text, control tokens included."""
        ready, facts = self.core.ready, self._text.facts
        window = ready.context_window if ready else facts.max_positions
        return min(window, facts.max_tokens or window)

    def _check(self, request: EncodeRequest) -> None:
        """Raises: `InvalidRequest`, `UnsupportedFeature`."""
        task = self._text.facts.task
        if request.task is not task:
            raise UnsupportedFeature(f"This model is for {_TASKS[task]} only.", param="model")
        if not 1 <= len(request.inputs) <= MAX_INPUTS:
            raise InvalidRequest(f"A request has 1 to {MAX_INPUTS} texts.")
        if (request.query is None) == (task is EncoderTask.RERANK):
            raise InvalidRequest("`query` goes with reranking, and only with it.", param="query")

    def _encode(self, request: EncodeRequest, grant: Grant) -> tuple[EncodedText, ...]:
        """Every text as token ids. Raises: `InvalidRequest`, `ContextTooLong`."""
        window = self._find_window()
        if window > grant.max_total_tokens:
            window = grant.max_total_tokens
        if window < 1:
            raise ContextTooLong("The grant covers no tokens.")
        text, query, truncates = self._text, request.query, request.truncates
        if query is None:
            return tuple(text.encode(one, window, truncates) for one in request.inputs)
        texts = [_require_text(one) for one in request.inputs]
        return text.encode_pairs(query, texts, window, truncates)


def _count_chars(request: EncodeRequest) -> int:
    """Characters, or token ids, of all texts and of the query, which is joined with each."""
    return sum(map(len, request.inputs)) + len(request.query or "") * len(request.inputs)


def _require_text(one: str | tuple[int, ...]) -> str:
    """A text that is compared to a query. Raises: `InvalidRequest` for token ids."""
    if isinstance(one, tuple):
        raise InvalidRequest("What is compared to a query must be text.")
    return one
