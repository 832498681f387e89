"""Quota arithmetic: how full a bucket is, when it has room again, and how much a request may use.

Pure: no clock, no state. One formula serves requests (GCRA: each costs one) and tokens. A bucket of
`limit` per minute is described by what is *owed* to it, in units of a 60,000th, so that one
millisecond pays back exactly `limit` units and nothing is ever rounded; an unknown bucket owes
nothing. A request larger than the whole bucket may start when nothing is owed, and leaves a debt.
`reserve.lua` has the same formulas. Source: ATM Forum TM 4.0, generic cell rate algorithm.
Read next: `gateway.admission.local_limiter`.
"""

from typing import Final

import msgspec

from contracts.encoding import EncodeRequest
from contracts.inference import GenerateRequest, NodeRequest
from contracts.pricing import TokenCounts

UNITS: Final = 60_000
"""Of what one request or token owes; also the milliseconds of a minute."""
TEMPLATE_TOKENS: Final = 256
"""What a chat template may add to the text of a request, above one token per byte of its body."""
TEXT_TOKENS: Final = 8
"""What an encoder adds to each text, likewise."""


def compute_owed(owed: int, limit: int, elapsed_ms: int) -> int:
    """What is still owed after `elapsed_ms`; a clock that went back pays nothing."""
    if elapsed_ms > 0:
        owed -= limit * elapsed_ms
    return max(0, owed)


def compute_wait_ms(owed: int, cost: int, limit: int) -> int:
    """Milliseconds until `cost` has room: 0 is now. `limit` is at least 1."""
    excess = owed + ((cost - limit) * UNITS if cost < limit else 0)
    return 0 if excess <= 0 else -(-excess // limit)


def compute_remaining(owed: int, limit: int) -> int:
    """How much has room now."""
    left = limit * UNITS - owed
    return left // UNITS if left > 0 else 0


def compute_reset_s(owed: int, limit: int) -> int:
    """Whole seconds until nothing is owed."""
    return -(-owed // (limit * 1000)) if limit else 0


class TokenBound(msgspec.Struct, frozen=True, gc=False):
    """The most that a request can come to, whatever a node says of it. Units: tokens."""

    num_prompt: int
    """Of all prompts, as far as the size of its body tells. No tokenizer makes more tokens than
    bytes, and a body has more bytes than the text in it."""
    max_prompt: int
    """The same by the context alone, of which each prompt has the whole."""
    context_window: int
    has_one_prompt: bool
    num_answers: int = 0
    """Choices of all prompts together."""
    max_each: int = 0
    """Of one of them."""
    max_output: int = 0
    """Of all of them."""


def bound_request(request: NodeRequest, num_body_bytes: int, context_window: int) -> TokenBound:
    """The bound of a request whose body has so many bytes. Counting tokens computes none."""
    if isinstance(request, GenerateRequest):
        num_prompts = 1 + len(request.further_prompts)
        max_prompt = context_window * num_prompts
        num_answers, asked = request.num_choices * num_prompts, request.sampling.max_tokens
        max_each = context_window if asked is None else min(asked, context_window)
        return TokenBound(
            min(max_prompt, num_body_bytes + TEMPLATE_TOKENS * num_prompts),
            max_prompt,
            context_window,
            num_prompts == 1,
            num_answers,
            max_each,
            max_each * num_answers,
        )
    if isinstance(request, EncodeRequest):
        max_prompt = context_window * len(request.inputs)
        num_tokens = min(max_prompt, _bound_texts(request, num_body_bytes))
        return TokenBound(num_tokens, max_prompt, context_window, has_one_prompt=False)
    return TokenBound(0, 0, context_window, has_one_prompt=True)


def correct_bound(bound: TokenBound, num_prompt: int, num_cached: int) -> TokenCounts:
    """The most that a request can come to once its prompt is known exactly."""
    room = bound.context_window - num_prompt if bound.has_one_prompt else bound.context_window
    output = min(bound.max_each, max(0, room)) * bound.num_answers
    return TokenCounts(num_prompt - num_cached, num_cached, output)


def limit_tokens(tokens: TokenCounts, bound: TokenBound) -> TokenCounts:
    """`tokens` without those that the request cannot have come to, whatever a node has said."""
    max_prompt, max_output = bound.max_prompt, bound.max_output
    num_cached, num_reasoning = tokens.num_cached, tokens.num_reasoning
    if (
        tokens.num_uncached + num_cached <= max_prompt
        and tokens.num_output + num_reasoning <= max_output
    ):
        return tokens
    num_cached = min(num_cached, max_prompt)
    num_reasoning = min(num_reasoning, max_output)
    return TokenCounts(
        min(tokens.num_uncached, max_prompt - num_cached),
        num_cached,
        min(tokens.num_output, max_output - num_reasoning),
        num_reasoning,
    )


def _bound_texts(request: EncodeRequest, num_body_bytes: int) -> int:
    """Tokens of all texts: each has control tokens of its own, and a query is read with each."""
    num_texts = len(request.inputs)
    again = len((request.query or "").encode()) * (num_texts - 1)
    return num_body_bytes + again + TEXT_TOKENS * num_texts
