"""A request that waits for a node: what decides where it may go, when its turn is, what it takes.

Plain data. Read next: `gateway.fair_queue.lines` (whose turn it is), `gateway.fair_queue.crowd`
(who may wait).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from contracts.encoding import EncodeRequest
from contracts.fair_order import DECODE_WEIGHT, PREFILL_WEIGHT
from contracts.ids import AccountId, NodeId
from contracts.inference import GenerateRequest, NodeRequest, Usage
from gateway.routing.prefix_keys import BYTES_PER_TOKEN, expect_output
from gateway.routing.route_plan import RouteNeed

UNDER_WAY: Final = 1000
"""Added to the priority of a request that had a place and lost it: above all that never had one."""
_USUAL_OUTPUT: Final = 128
"""Tokens of an answer whose request does not bound it: what it has come to is charged later."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One request, from when it joins until it leaves."""

    need: RouteNeed
    account_id: AccountId
    priority: int
    """Higher goes first; so it is at nodes."""
    num_tokens: int
    """Of prompt and answer as far as one can tell, weighted as engines weigh them."""
    num_bytes: int
    """That the request itself holds of memory."""
    started_s: float
    """When the request began: its place in its account's line, also when it comes back."""
    until_s: float
    """It waits no longer than this, by the monotonic clock."""
    refused: Mapping[NodeId, int] = field(default_factory=dict[NodeId, int])
    """Nodes that have refused it, and which report was their last then: they are asked again after
    the next one."""


def weigh(request: NodeRequest, num_bytes: int) -> int:
    """What `request`, of `num_bytes` as it is sent, takes of a node. Units: weighted tokens."""
    num_prompt = int(num_bytes / BYTES_PER_TOKEN) + 1
    if not isinstance(request, GenerateRequest):
        return PREFILL_WEIGHT * num_prompt
    num_output = request.num_answers * expect_output(request, _USUAL_OUTPUT)
    return PREFILL_WEIGHT * num_prompt + DECODE_WEIGHT * num_output


def weigh_usage(usage: Usage) -> int:
    """What a request has taken of a node in the end, by the same measure."""
    num_new = usage.num_prompt_tokens - usage.num_cached_tokens
    return PREFILL_WEIGHT * num_new + DECODE_WEIGHT * usage.num_completion_tokens


def rejects_waiting(request: NodeRequest) -> bool:
    """True for one that would rather have no answer."""
    return isinstance(request, GenerateRequest | EncodeRequest) and request.reject_if_busy
