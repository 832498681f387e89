"""How long a request will wait at a node and work there, in seconds: what nodes are compared by.

Pure arithmetic over a node's last report and what was sent there since. A warm cache, a short
queue, a fast card and a near region all save seconds, so that no two of them need a weight.
Read next: `gateway.routing.search`.
"""

from typing import Final

from contracts.fleet import COMPARED_SEQUENCES, ModelLoad
from gateway.routing.route_plan import RouteNeed, Sent

_DEFAULT_PREFILL_PER_S: Final = 2000.0
_DEFAULT_DECODE_PER_S: Final = 2000.0
"""Of nodes that have not measured theirs yet. Units: tokens per second."""
_SLOWEST_PER_S: Final = 1.0
"""That is believed: by a rate next to none a cost would be infinite or no number, which compares
with nothing.
"""
_UNKNOWN_TOKENS: Final = 512
"""Of a waiting request, where the node does not say."""
UNKNOWN_WAKE_S: Final = 30.0
"""Until a model can answer that is not ready, where the node does not say; also the most that is
believed: a wrong figure must not keep a node out for good.
"""
_OPENING: Final = 0.2
"""Of an answer: what is read of it first. The rest comes faster than anybody reads."""
_KV_PRESSURE_S: Final = 0.15
_FULLEST: Final = 0.99
NOTHING_SENT: Final = Sent()
Places = tuple[int, int]
"""As `count_places` counts them."""


def estimate_wait_s(
    load: ModelLoad, sent: Sent, num_new_tokens: int, opening_s: float, places: Places
) -> float:
    """Seconds that a request waits at the node for others: what is before its prompt, and beside
    the opening of its answer.

    Until it has a place; the queue at the speed of prefill; then its share of decode among those
    that have a place, too; and the growing risk of a preemption as KV memory fills up.
    """
    num_sharing, num_ahead = places
    num_queued = count_queued_tokens(load) + sent.num_tokens
    wait_s = count_openings(num_sharing, num_ahead) * opening_s
    wait_s += num_queued / find_prefill_per_s(load)
    capacity = load.num_blocks * load.block_size
    if capacity:
        used = min((count_held_tokens(load, sent) + num_new_tokens) / capacity, _FULLEST)
        wait_s += _KV_PRESSURE_S * used / (1 - used)
    return wait_s


def count_openings(num_sharing: int, num_ahead: int) -> float:
    """How many openings of answers are waited for: one's own among those beside it, and before it
    as many whole answers as have to end.
    """
    return num_sharing + 1 + num_ahead / _OPENING


def estimate_work_s(load: ModelLoad, num_new_tokens: int) -> float:
    """What of the prompt is to be computed, in seconds of the node."""
    return max(num_new_tokens, 1) / find_prefill_per_s(load)


def estimate_opening_s(load: ModelLoad, need: RouteNeed, *, by_step: bool = True) -> float:
    """What the opening of the answer takes of the node's decode, in seconds of the node; `by_step`
    as in `find_decode_per_s`.
    """
    num_tokens = max(_OPENING * need.num_output_tokens, 1)
    return num_tokens / find_decode_per_s(load, by_step=by_step)


def find_prefill_per_s(load: ModelLoad) -> float:
    """How fast the node computes prompts, as it says and as far as that is believed."""
    return max(load.prefill_tokens_per_s or _DEFAULT_PREFILL_PER_S, _SLOWEST_PER_S)


def find_decode_per_s(load: ModelLoad, *, by_step: bool = True) -> float:
    """The same of generated tokens, of all requests together: `by_step` of as many at each node.

    Where that is not asked for, or the node does not say it, by the most that it has generated,
    which is more where it had more requests.
    """
    if by_step and load.decode_step_s:
        return max(COMPARED_SEQUENCES / load.decode_step_s, _SLOWEST_PER_S)
    return max(load.decode_tokens_per_s or _DEFAULT_DECODE_PER_S, _SLOWEST_PER_S)


def estimate_wake_s(wake_s: float | None) -> float:
    """What a node says of the time until a model is awake, as far as that is believed."""
    return UNKNOWN_WAKE_S if wake_s is None else min(wake_s, UNKNOWN_WAKE_S)


def measure_load_tokens(load: ModelLoad, sent: Sent) -> int:
    """Tokens that a node holds or has to compute: what is compared for an even load."""
    return count_held_tokens(load, sent) + count_queued_tokens(load)


def count_held_tokens(load: ModelLoad, sent: Sent) -> int:
    """Tokens in the node's KV memory, as it says, and as has come and gone since.

    Never below none: a report that was on its way as a request came has not counted it, and its
    end is subtracted all the same.
    """
    held = (load.num_blocks - load.num_free_blocks) * load.block_size
    return max(held + sent.num_held, 0)


def tells_held(load: ModelLoad) -> bool:
    """True where the node says what its requests hold: there are engines that do not.

    Blocks of no size hold nothing, however many requests have some.
    """
    num_held = (load.num_blocks - load.num_free_blocks) * load.block_size
    has_memory = load.num_blocks > 0 and load.block_size > 0
    return has_memory and (num_held > 0 or not load.num_running)


def count_places(load: ModelLoad, sent: Sent) -> Places:
    """Requests that share the node's steps with one more, those that have a place then, too; and
    answers that have to end before it has one.

    These are taken to be as long as its own, and take the node what one answer takes of it, for
    each; none where the node does not say how many places it has.
    """
    num_there = load.num_running + load.num_waiting + load.num_coming + sent.num_requests
    num_ahead = num_there + 1 - load.max_running
    if not load.max_running or num_ahead <= 0:
        return num_there, 0
    return load.max_running - 1, num_ahead


def count_queued_tokens(load: ModelLoad) -> int:
    """Tokens of prompts that are still to be computed, as the node says or as one must guess."""
    return load.num_queued_tokens or load.num_waiting * _UNKNOWN_TOKENS
