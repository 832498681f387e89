"""How long a request will wait at a node and work there, in seconds: what nodes are compared by.

Pure arithmetic over what a node's last report comes to and what was sent there since. A warm cache,
a short queue, a fast card and a near region all save seconds, so that no two of them need a weight.
Read next: `gateway.routing.pace`, `gateway.routing.search`.
"""

from typing import Final

from gateway.routing.pace import Pace
from gateway.routing.route_plan import RouteNeed, Sent

_OPENING: Final = 0.2
"""Of an answer: what is read of it first. The rest comes faster than anybody reads."""
_KV_PRESSURE_S: Final = 0.15
_FULLEST: Final = 0.99
NOTHING_SENT: Final = Sent()
Places = tuple[int, int]
"""As `count_places` counts them."""


def estimate_wait_s(
    pace: Pace, sent: Sent, num_held: int, opening_s: float, places: Places
) -> float:
    """Seconds that a request waits at the node for others: what is before its prompt, and beside
    the opening of its answer. With its prompt the node holds `num_held` tokens.

    Until it has a place; the queue at the speed of prefill; then its share of decode among those
    that have a place, too; and the growing risk of a preemption as KV memory fills up.
    """
    num_sharing, num_ahead = places
    wait_s = count_openings(num_sharing, num_ahead) * opening_s
    wait_s += (pace.num_queued + sent.num_tokens) / pace.prefill_per_s
    if pace.capacity:
        used = min(num_held / pace.capacity, _FULLEST)
        wait_s += _KV_PRESSURE_S * used / (1 - used)
    return wait_s


def count_openings(num_sharing: int, num_ahead: int) -> float:
    """How many openings of answers are waited for: one's own among those beside it, and before it
    as many whole answers as have to end.
    """
    return num_sharing + 1 + num_ahead / _OPENING


def estimate_work_s(pace: Pace, num_new_tokens: int) -> float:
    """What of the prompt is to be computed, in seconds of the node."""
    return max(num_new_tokens, 1) / pace.prefill_per_s


def count_opening_tokens(need: RouteNeed) -> float:
    """Tokens of the opening of the answer."""
    return max(_OPENING * need.num_output_tokens, 1)


def count_held_tokens(pace: Pace, sent: Sent) -> int:
    """Tokens in the node's KV memory, as it says, and as has come and gone since.

    Never below none: a report that was on its way as a request came has not counted it, and its
    end is subtracted all the same.
    """
    return max(pace.num_held + sent.num_held, 0)


def count_places(pace: Pace, sent: Sent) -> Places:
    """Requests that share the node's steps with one more, those that have a place then, too; and
    answers that have to end before it has one.

    These are taken to be as long as its own, and take the node what one answer takes of it, for
    each; none where the node does not say how many places it has.
    """
    num_there = pace.num_requests + sent.num_requests
    num_ahead = num_there + 1 - pace.max_running
    if not pace.max_running or num_ahead <= 0:
        return num_there, 0
    return pace.max_running - 1, num_ahead
