"""What the core refuses before it schedules anything, and what it makes of the rest.

Owns the checks that need the loaded model's figures; must not know the current load.
Read next: `scheduler`, which calls it.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from contracts.errors import (
    AdapterUnsupported,
    ContextTooLong,
    InvalidRequest,
    InvariantBroken,
    OutOfBlocks,
)
from contracts.grant import RetentionClass
from contracts.inference import SamplingParams
from gpu_pool.engine.drafting import Drafter
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import TokenMatcher
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import ExecutorInfo

MAX_LOGPROBS: Final = 100
MAX_BIASES: Final = 1024
MAX_BIAS: Final = 1000.0
MAX_SPELLINGS: Final = 512
MAX_SPELLING_TOKENS: Final = 64
"""Together they bound what a row keeps of its bad words: 32,768 tokens."""


class Admission:
    """Makes sequences of requests, in order of arrival."""

    def __init__(
        self,
        settings: SchedulerSettings,
        info: ExecutorInfo,
        kv: KvMemory,
        draw_seed: Callable[[], int],
    ) -> None:
        """`draw_seed` serves requests that bring no seed."""
        self._ngram = settings.ngram
        self._keeps_prefixes = settings.prefix_caching
        self._info = info
        self._kv = kv
        self._draw_seed = draw_seed
        self._num_arrivals = 0

    def admit(self, request: AddSequence, matcher: TokenMatcher | None = None) -> Sequence:
        """The sequence of `request`, whose answer `matcher` will follow. Raises: as
        `check_admission`.
        """
        max_tokens = check_admission(request, self._info, self._kv)
        sampling = request.sampling
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=self._draw_seed())
        adapter = request.adapter
        num_prompt_tokens = len(request.token_ids) - request.num_generated_tokens
        self._num_arrivals += 1
        return Sequence(
            sequence_id=request.sequence_id,
            account_id=request.account_id,
            priority=request.priority,
            arrival=self._num_arrivals,
            deadline_ms=request.deadline_ms,
            reject_if_busy=request.reject_if_busy,
            sampling=sampling,
            max_tokens=max_tokens,
            token_ids=list(request.token_ids),
            num_prompt_tokens=num_prompt_tokens,
            table=self._kv.create_table(
                request.account_id,
                request.cache_salt if self._keeps_prefixes else request.choices_salt,
                b"" if adapter is None else adapter.digest,
                is_private=request.retention is RetentionClass.NONE,
                priority=request.priority,
                regions=request.regions,
            ),
            adapter=adapter,
            matcher=matcher,
            num_matched_tokens=num_prompt_tokens,
            drafter=self._create_drafter(request),
        )

    def _create_drafter(self, request: AddSequence) -> Drafter | None:
        """What guesses for a sequence: nothing where what is drawn depends on more than its place.

        Penalties count the tokens before, and a grammar allows by them.
        """
        if self._ngram is None or request.grammar is not None or request.sampling.has_penalties:
            return None
        return Drafter(self._ngram)


def check_admission(request: AddSequence, info: ExecutorInfo, kv: KvMemory) -> int:
    """The number of tokens to generate at most.

    Raises: `InvalidRequest`, `ContextTooLong`, `AdapterUnsupported`; `OutOfBlocks` when even an
    idle pool is too small; `InvariantBroken` when the server left out what it has to set.
    """
    max_tokens = request.sampling.max_tokens
    if max_tokens is None or not request.cache_salt:
        raise InvariantBroken("The node lost a part of the request.")
    if not request.token_ids:
        raise InvalidRequest("The prompt is empty.", param="prompt")
    if request.adapter is not None and not info.max_adapter_rank:
        raise AdapterUnsupported("This model takes no adapters.", param="lora")
    if min(request.token_ids) < 0 or max(request.token_ids) >= info.vocab_size:
        raise InvalidRequest("The prompt has token ids outside the vocabulary.", param="prompt")
    if max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1.", param="max_tokens")
    num_prompt_tokens = len(request.token_ids) - request.num_generated_tokens
    if num_prompt_tokens < 1 or not 0 <= request.num_generated_tokens < max_tokens:
        raise InvariantBroken("The node lost count of the answer so far.")
    _check_sampling(request.sampling, info.vocab_size)
    num_tokens = num_prompt_tokens + max_tokens
    if num_tokens > info.context_window:
        raise ContextTooLong(
            f"The prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}; "
            f"together they exceed the context window of {info.context_window}."
        )
    # The last token is sampled but never computed, so it needs no room.
    if not kv.fits(num_tokens - 1):
        raise OutOfBlocks(
            f"The request has up to {num_tokens} tokens; the KV memory of this node is too small "
            f"for that."
        )
    return max_tokens


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises: `InvalidRequest` for what only the vocabulary tells, or what would take memory."""
    for name in ("num_logprobs", "num_prompt_logprobs"):
        count = sampling.num_logprobs if name == "num_logprobs" else sampling.num_prompt_logprobs
        if count is not None and not 0 <= count <= min(MAX_LOGPROBS, vocab_size):
            raise InvalidRequest(
                f"`{name}` must lie between 0 and {min(MAX_LOGPROBS, vocab_size)}.", param=name
            )
    if len(sampling.logit_bias) > MAX_BIASES:
        raise InvalidRequest(
            f"`logit_bias` names more than {MAX_BIASES} tokens.", param="logit_bias"
        )
    for token_id, bias in sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"`logit_bias` names token {token_id}; the vocabulary has {vocab_size}.",
                param="logit_bias",
            )
        if not (math.isfinite(bias) and abs(bias) <= MAX_BIAS):
            raise InvalidRequest(
                f"A `logit_bias` must lie between -{MAX_BIAS:g} and {MAX_BIAS:g}.",
                param="logit_bias",
            )
    if sampling.bad_spellings:
        _check_spellings(sampling.bad_spellings, vocab_size)


def _check_spellings(spellings: tuple[tuple[int, ...], ...], vocab_size: int) -> None:
    """Raises: `InvalidRequest` for bad words that are too many or too long, `InvariantBroken`."""
    if len(spellings) > MAX_SPELLINGS:
        raise InvalidRequest(
            f"`bad_words` are spelled in {len(spellings)} ways; there may be {MAX_SPELLINGS}.",
            param="bad_words",
        )
    longest = max(map(len, spellings))
    if longest > MAX_SPELLING_TOKENS:
        raise InvalidRequest(
            f"One of `bad_words` has {longest} tokens; it may have {MAX_SPELLING_TOKENS}.",
            param="bad_words",
        )
    if not all(spellings) or not all(0 <= i < vocab_size for one in spellings for i in one):
        raise InvariantBroken("The node has spelled a word with tokens that there are not.")
