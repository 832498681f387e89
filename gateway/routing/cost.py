"""How long a request will wait at a node, in seconds: the one number that nodes are compared by.

Pure arithmetic over a node's last report and what was sent there since. A warm cache, a short
queue, a fast card and a near region all save seconds, so that no two of them need a weight.
Read next: `gateway.routing.choose_node`.
"""

from typing import Final

from contracts.fleet import ModelLoad
from gateway.routing.route_plan import RouteNeed, Sent

DEFAULT_PREFILL_PER_S: Final = 2000.0
DEFAULT_DECODE_PER_S: Final = 2000.0
"""Of nodes that have not measured theirs yet. Units: tokens per second."""
_UNKNOWN_TOKENS: Final = 512
"""Of a waiting request, where the node does not say."""
UNKNOWN_WAKE_S: Final = 30.0
"""Until a model can answer that is not ready, where the node does not say; also the most that is
believed: a wrong figure must not keep a node out for good.
"""
_KV_PRESSURE_S: Final = 0.15
_FULLEST: Final = 0.99
NOTHING_SENT: Final = Sent()


def estimate_cost_s(
    load: ModelLoad, sent: Sent, need: RouteNeed, num_cached_tokens: int, away_s: float
) -> float:
    """Seconds until the node has given this request its first tokens.

    The queue and this prompt at the speed of prefill; then its share of decode among all others;
    the growing risk of a preemption as KV memory fills up; and `away_s`, for what lies between
    the request and the model: the way there, and the wake-up of its weights.
    """
    num_queued = count_queued_tokens(load)
    num_new = max(need.num_prompt_tokens - num_cached_tokens, 1)
    prefill_s = (num_queued + sent.num_tokens + num_new) / (
        load.prefill_tokens_per_s or DEFAULT_PREFILL_PER_S
    )
    num_sharing = load.num_running + load.num_waiting + sent.num_requests + 1
    decode_s = (
        num_sharing
        * max(need.num_output_tokens, 1)
        / (load.decode_tokens_per_s or DEFAULT_DECODE_PER_S)
    )
    used = measure_kv_use(load, sent, num_new)
    pressure_s = _KV_PRESSURE_S * used / (1 - used)
    return prefill_s + decode_s + pressure_s + away_s


def estimate_wake_s(wake_s: float | None) -> float:
    """What a node says of the time until a model is awake, as far as that is believed."""
    return UNKNOWN_WAKE_S if wake_s is None else min(wake_s, UNKNOWN_WAKE_S)


def estimate_own_s(load: ModelLoad, need: RouteNeed, num_cached_tokens: int) -> float:
    """What of the cost is the request's own work, which no other node of this kind would save."""
    num_new = max(need.num_prompt_tokens - num_cached_tokens, 1)
    prefill_s = num_new / (load.prefill_tokens_per_s or DEFAULT_PREFILL_PER_S)
    return prefill_s + max(need.num_output_tokens, 1) / (
        load.decode_tokens_per_s or DEFAULT_DECODE_PER_S
    )


def measure_kv_use(load: ModelLoad, sent: Sent, num_new_tokens: int) -> float:
    """The share of KV memory in use once what was sent has arrived, below 1."""
    capacity = load.num_blocks * load.block_size
    if not capacity:
        return 0.0
    held = (load.num_blocks - load.num_free_blocks) * load.block_size
    return min((held + sent.num_tokens + num_new_tokens) / capacity, _FULLEST)


def measure_load_tokens(load: ModelLoad, sent: Sent) -> int:
    """Tokens that a node holds or has to compute: what bounded load compares."""
    held = (load.num_blocks - load.num_free_blocks) * load.block_size
    return held + count_queued_tokens(load) + sent.num_tokens


def count_queued_tokens(load: ModelLoad) -> int:
    """Tokens of prompts that are still to be computed, as the node says or as one must guess."""
    return load.num_queued_tokens or load.num_waiting * _UNKNOWN_TOKENS
