"""A request that may start: checked, tokenised, and with a core to go to.

Owns what the engine is told of each of its sequences; must not know how the checks are made.
Read next: `served_model` (makes it), `generation` (starts it).
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from contracts.grant import Grant, RetentionClass
from contracts.inference import GenerateRequest, SamplingParams
from gpu_pool.engine.messages import AddSequence, CoreReady
from gpu_pool.plan import SequenceId
from gpu_pool.server.adapters.shelf import AdapterLease
from gpu_pool.server.arriving_blocks import ArrivingBlocks
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import EncodedPrompt
from gpu_pool.server.text.scored_text import ScoredText, lacks_first_space
from gpu_pool.server.text.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What is needed to start the sequences of one prompt and to read their answers."""

    client: EngineClient
    text: ModelText
    request: GenerateRequest
    grant: Grant
    prompt: EncodedPrompt
    max_tokens: int
    """Of each choice; fits the context and the grant."""
    deadline_ms: int
    """The grant's, by `node_clock`."""
    grammar: str | None
    echo: str
    """The prompt's own text where the answer is to begin with it, else empty."""
    ready: CoreReady | None = None
    """What the core has said of itself."""
    arriving: ArrivingBlocks | None = None
    """Of the first choice, whose KV blocks come from another node."""
    cold_s: float = 0.0
    """How long it has waited for the core."""
    first_choice: int = 0
    """The index of the prompt's first answer among those of the request."""
    further: "tuple[PreparedRequest, ...]" = ()
    """The request's other prompts, in order."""
    lease: AdapterLease | None = None
    """Of its adapter's file, which stays until the request is over."""

    @property
    def num_prompt_tokens(self) -> int:
        """The prompt's length, control tokens included."""
        return len(self.prompt.token_ids)

    def release(self) -> None:
        """The request is over: its sequences need nothing any more."""
        if self.lease is not None:
            self.lease.release()

    def create_stream(self, index: int) -> TextStream:
        """The way out for the choice `index`."""
        return self.text.create_stream(self.request, index, self.prompt.is_thinking)

    def create_prompt_scored(self) -> ScoredText:
        """The prompt's scored tokens; an echo of it may lack the space that they begin with."""
        table, token_ids = self.text.table, self.prompt.token_ids
        is_scored = self.request.sampling.num_prompt_logprobs is not None
        hides_space = is_scored and lacks_first_space(table, token_ids, self.echo)
        return ScoredText(table, hides_space=hides_space)

    def create_scored(self) -> ScoredText:
        """The scored tokens of an answer, behind those that its reader has."""
        scored = self.text.create_scored(self.request.prompt)
        if self.request.resumption is not None:
            scored.skip(self.request.resumption.token_ids)
        return scored

    def is_first(self, index: int) -> bool:
        """True for the choice that computes the prompt; the others find it in the cache."""
        return index == self.first_choice

    def describe(self, index: int) -> Callable[[SequenceId], AddSequence]:
        """What the engine is told of the choice `index`, once its sequence has an id."""
        is_first = self.is_first(index)
        sampling = self._choose_sampling(index - self.first_choice)
        resumption = self.request.resumption
        generated = () if resumption is None else resumption.token_ids

        def create(sequence_id: SequenceId) -> AddSequence:
            return AddSequence(
                sequence_id,
                self.grant.account_id,
                self._find_salt(),
                (*self.prompt.token_ids, *generated) if generated else self.prompt.token_ids,
                sampling,
                self.grant.priority,
                self.deadline_ms,
                self.request.reject_if_busy and is_first,
                self.grammar,
                self.grant.retention,
                len(generated),
                arrival=self.arriving.arrival if self.arriving and is_first else None,
                cached_share=self.grant.cached_share,
                adapter=None if self.lease is None else self.lease.file,
                choices_salt=self._find_own_salt() if self.request.num_choices > 1 else b"",
                regions=self.grant.regions,
            )

        return create

    def _find_salt(self) -> bytes:
        """The namespace in which blocks are shared: of the account, or with retention `none` of
        this request alone, so that only its own choices find each other's.
        """
        if self.grant.retention is RetentionClass.STANDARD:
            return self.grant.cache_salt
        return self._find_own_salt()

    def _find_own_salt(self) -> bytes:
        """The namespace of this request alone."""
        own = f"hearth kv request\0{self.grant.request_id}\0{self.grant.attempt}"
        return hmac.digest(self.grant.cache_salt, own.encode(), "sha256")

    def _choose_sampling(self, index: int) -> SamplingParams:
        """The parameters of the prompt's choice `index`; stop strings stay on this side.

        The prompt is scored once, and each choice has a seed of its own. The engine computes one
        token more than none, since it has no other way to end.
        """
        sampling = msgspec.structs.replace(
            self.request.sampling, max_tokens=max(self.max_tokens, 1), stop=()
        )
        if index == 0:
            return sampling
        seed = sampling.seed
        return msgspec.structs.replace(
            sampling,
            num_prompt_logprobs=None,
            seed=None if seed is None else (seed + index) % 2**63,
        )
