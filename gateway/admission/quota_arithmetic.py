"""Quota arithmetic: how full a bucket is, when it has room again, and how much a request may use.

Pure: no clock, no state. One formula serves requests (GCRA: each costs one) and tokens. A bucket of
`limit` per minute is described by what is *owed* to it, in units of a 60,000th, so that one
millisecond pays back exactly `limit` units and nothing is ever rounded; an unknown bucket owes
nothing. A request larger than the whole bucket may start when nothing is owed, and leaves a debt.
`reserve.lua` has the same formulas. Source: ATM Forum TM 4.0, generic cell rate algorithm.
Read next: `gateway.admission.local_limiter`.
"""

from typing import Final

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


def bound_tokens(request: NodeRequest, num_body_bytes: int, context_window: int) -> tuple[int, int]:
    """The most prompt tokens and the most generated tokens that a request can come to.

    No tokenizer makes more tokens than bytes, and a body has more bytes than the text in it.
    Counting tokens computes none.
    """
    if isinstance(request, GenerateRequest):
        num_prompts = len(request.prompts)
        prompt = min(context_window * num_prompts, num_body_bytes + TEMPLATE_TOKENS * num_prompts)
        return prompt, _bound_output(request, context_window)
    if isinstance(request, EncodeRequest):
        return _bound_texts(request, num_body_bytes, context_window), 0
    return 0, 0


def correct_bound(
    request: NodeRequest, num_prompt: int, num_cached: int, context_window: int
) -> TokenCounts:
    """The most that a request can come to once its prompt is known exactly."""
    output = 0
    if isinstance(request, GenerateRequest):
        least = 0 if request.further_prompts else num_prompt
        output = _bound_output(request, max(0, context_window - least))
    return TokenCounts(num_prompt - num_cached, num_cached, output)


def limit_tokens(tokens: TokenCounts, request: NodeRequest, context_window: int) -> TokenCounts:
    """`tokens` without those that the request cannot have come to, whatever a node has said."""
    if isinstance(request, GenerateRequest):
        max_prompt = context_window * len(request.prompts)
        max_output = _bound_output(request, context_window)
    elif isinstance(request, EncodeRequest):
        max_prompt, max_output = context_window * len(request.inputs), 0
    else:
        return tokens
    num_cached = min(tokens.num_cached, max_prompt)
    num_reasoning = min(tokens.num_reasoning, max_output)
    return TokenCounts(
        min(tokens.num_uncached, max_prompt - num_cached),
        num_cached,
        min(tokens.num_output, max_output - num_reasoning),
        num_reasoning,
    )


def _bound_texts(request: EncodeRequest, num_body_bytes: int, context_window: int) -> int:
    """Tokens of all texts: each has control tokens of its own, and a query is read with each."""
    num_texts = len(request.inputs)
    again = len((request.query or "").encode()) * (num_texts - 1)
    return min(context_window * num_texts, num_body_bytes + again + TEXT_TOKENS * num_texts)


def _bound_output(request: GenerateRequest, room: int) -> int:
    """Generated tokens of all answers, each of which has `room`."""
    asked = request.sampling.max_tokens
    return (room if asked is None else min(asked, room)) * request.num_answers
