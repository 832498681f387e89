"""The last check of a request's sampling parameters before they reach the engine.

The gateway refuses odd values in its clients' own words; a node relies on nobody for its safety.
Read next: `generation`.
"""

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from contracts.errors import ContextTooLong, Forbidden, InvalidRequest
from contracts.inference import (
    MAX_ECHO_CHARS,
    RESUMPTION,
    ChatPrompt,
    GenerateRequest,
    SamplingParams,
    TextPrompt,
)

MAX_STOPS: Final = 64
MAX_STOP_CHARS: Final = 1024
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_CHARS: Final = 128
MAX_SEED: Final = 2**63 - 1
MAX_TEMPERATURE: Final = 100.0
MAX_PENALTY: Final = 100.0
MAX_CHOICES: Final = 128
MAX_SCORES: Final = 1 << 19
"""Tokens and alternatives to them with their log-probabilities, all answers of a request together:
some 70 MB where an answer is held until it is whole or read."""


def check_request(request: GenerateRequest) -> None:
    """Raises: `InvalidRequest` naming the first field that is out of range or contradicts."""
    _check_sampling(request.sampling)
    if request.bad_words or request.sampling.bad_spellings:
        _check_bad_words(request)
    if not 1 <= request.num_choices <= MAX_CHOICES:
        raise InvalidRequest(f"`n` must lie between 1 and {MAX_CHOICES}.", param="n")
    if request.num_answers > MAX_CHOICES:
        raise InvalidRequest(
            f"The answers to all prompts may be {MAX_CHOICES} at most.", param="prompt"
        )
    if request.resumption is not None and request.num_answers > 1:
        raise InvalidRequest("Only a single choice can be resumed.", param="n")
    if request.echoes_prompt and isinstance(request.prompt, ChatPrompt):
        raise InvalidRequest("Only plain prompts can be echoed.", param="echo")
    if request.further_prompts and isinstance(request.prompt, ChatPrompt):
        raise InvalidRequest("Several prompts must all be plain ones.", param="prompt")
    if request.echoes_prompt:
        texts = [prompt.text for prompt in request.prompts if isinstance(prompt, TextPrompt)]
        check_echo(texts, request.num_choices)


def check_echo(texts: Iterable[str], num_choices: int) -> None:
    """Raises: `InvalidRequest` where answers would repeat more of their prompts than they may."""
    num_chars = num_choices * sum(map(len, texts))
    if num_chars > MAX_ECHO_CHARS:
        raise InvalidRequest(
            f"The answers would repeat {num_chars:,} characters of the prompt; those of a request "
            f"may repeat {MAX_ECHO_CHARS:,}.",
            param="echo",
        )


def check_resumption(request: GenerateRequest, vocab_size: int) -> None:
    """Raises: `InvalidRequest` where the answer goes on from tokens that this model does not have:
    neither the client nor this node has said them.
    """
    resumption = request.resumption
    if resumption is not None and max(resumption.token_ids, default=0) >= vocab_size:
        raise InvalidRequest(
            "The answer so far has token ids outside the vocabulary.", param=RESUMPTION
        )


def _check_sampling(sampling: SamplingParams) -> None:
    """Raises: `InvalidRequest` naming the first field that is out of range."""
    ranges = (
        ("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("top_k", sampling.top_k, 0, 2**31 - 1),
        ("repetition_penalty", sampling.repetition_penalty, 0.01, MAX_PENALTY),
        ("frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY),
        ("presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY),
        ("seed", sampling.seed or 0, -MAX_SEED - 1, MAX_SEED),
        ("max_tokens", 1 if sampling.max_tokens is None else sampling.max_tokens, 0, 2**31 - 1),
    )
    for name, value, low, high in ranges:
        if not (math.isfinite(value) and low <= value <= high):
            raise InvalidRequest(f"`{name}` must lie between {low} and {high}.", param=name)
    if len(sampling.stop) > MAX_STOPS:
        raise InvalidRequest(f"`stop` has more than {MAX_STOPS} strings.", param="stop")
    if not all(0 < len(stop) <= MAX_STOP_CHARS for stop in sampling.stop):
        raise InvalidRequest(
            f"Each string of `stop` must have 1 to {MAX_STOP_CHARS} characters.", param="stop"
        )


def _check_bad_words(request: GenerateRequest) -> None:
    """Raises: `InvalidRequest` for bad words that are too many, too long or nothing but spaces."""
    words = request.bad_words
    if request.sampling.bad_spellings:
        raise InvalidRequest("Bad words are spelled by the node alone.", param="bad_words")
    if len(words) > MAX_BAD_WORDS:
        raise InvalidRequest(f"`bad_words` has more than {MAX_BAD_WORDS} words.", param="bad_words")
    if not all(word.strip(" ") and len(word) <= MAX_BAD_WORD_CHARS for word in words):
        raise InvalidRequest(
            f"Each of `bad_words` must have 1 to {MAX_BAD_WORD_CHARS} characters and more than "
            "spaces.",
            param="bad_words",
        )


def resolve_max_tokens(
    sampling: SamplingParams, num_prompt_tokens: int, context_window: int, max_total_tokens: int
) -> int:
    """How many tokens a choice may have; None asks for all that context and grant leave, and a
    default for no more than that.

    Raises: `ContextTooLong` when prompt and output do not fit in the context, `Forbidden` when
    the grant, which like the context counts each choice by itself, does not cover them.
    """
    requested = sampling.max_tokens
    # The engine has no other way to compute a prompt than to draw a token behind it.
    wanted = 1 if requested is None or sampling.is_max_tokens_default else max(requested, 1)
    if num_prompt_tokens + wanted > context_window:
        raise ContextTooLong(
            f"This model's context is {context_window} tokens; the prompt has "
            f"{num_prompt_tokens} and at least {wanted} more are asked for."
        )
    if num_prompt_tokens + wanted > max_total_tokens:
        raise Forbidden(
            f"The grant covers {max_total_tokens} tokens; the prompt has {num_prompt_tokens} and "
            f"at least {wanted} more are asked for."
        )
    left = min(context_window, max_total_tokens) - num_prompt_tokens
    return left if requested is None else min(requested, left)


def fit_scores(
    request: GenerateRequest, num_prompt_tokens: int, context_window: int
) -> GenerateRequest:
    """The request, or one for shorter answers where it leaves their length to us and `MAX_SCORES`
    would not hold those of a whole context. `num_prompt_tokens` are those of all its prompts.

    Raises: `InvalidRequest` for more scores than are held.
    """
    sampling = request.sampling
    room = MAX_SCORES - num_prompt_tokens * _count_scores(sampling.num_prompt_logprobs)
    each = request.num_answers * _count_scores(sampling.num_logprobs)
    asked = context_window if sampling.max_tokens is None else sampling.max_tokens
    if min(asked, context_window) * each <= room:
        return request
    is_open = sampling.max_tokens is None or sampling.is_max_tokens_default
    if is_open and each and room >= each:
        shorter = msgspec.structs.replace(
            sampling, max_tokens=room // each, is_max_tokens_default=True
        )
        return msgspec.structs.replace(request, sampling=shorter)
    raise InvalidRequest(
        f"A request's scores, those of prompts included, may be {MAX_SCORES:,} tokens and "
        "alternatives to them at most. Ask for fewer `logprobs`, choices or tokens.",
        param="logprobs",
    )


def _count_scores(num_alternatives: int | None) -> int:
    """How many scores each token brings; whether it may bring so many is the engine's to say."""
    return 0 if num_alternatives is None else 1 + max(num_alternatives, 0)
