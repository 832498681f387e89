"""A request that may start: checked, tokenised, and with a core to go to.

Owns what the engine is told of a request; must not know how the checks are made.
Read next: `served_model` (makes it), `generation` (starts it).
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from contracts.grant import Grant
from contracts.inference import GenerateRequest
from gpu_pool.engine.messages import AddSequence
from gpu_pool.plan import SequenceId
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.text.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class PreparedSequence:
    """What is needed to start it and to read its answer."""

    client: EngineClient
    text: TextStream
    num_prompt_tokens: int
    create: Callable[[SequenceId], AddSequence]


def describe_sequence(
    request: GenerateRequest, grant: Grant, token_ids: tuple[int, ...], max_tokens: int
) -> Callable[[SequenceId], AddSequence]:
    """What the engine is told once the sequence has an id; stop strings stay on this side."""
    sampling = msgspec.structs.replace(request.sampling, max_tokens=max_tokens, stop=())

    def create(sequence_id: SequenceId) -> AddSequence:
        return AddSequence(
            sequence_id,
            grant.account_id,
            grant.cache_salt,
            token_ids,
            sampling,
            grant.priority,
            grant.deadline_unix_ms,
            request.reject_if_busy,
        )

    return create
