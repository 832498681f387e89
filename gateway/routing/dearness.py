"""How long others wait for a request's work.

Pure. A node computes prompts in the order in which they come. One of `W` seconds that comes upon a
queue of `Q` seconds keeps those who come later waiting for `W` more, until the queue would have
been over, and for less and less after that: altogether for u/(1-u) * W * (Q + W/2) / S seconds,
where prefill is in use for the share `u` of the time and a usual request takes `S` of it. (Arrivals
by chance, at `u / S` a second; the queue lasts for `Q / (1-u)`.) So a long prompt that is cached
elsewhere is dear by more than its length, and at the end of a long queue more than of a short one.
Read next: `gateway.routing.search` (the user).
"""

from collections.abc import Sequence
from typing import Final

LONGEST: Final = 4.0
"""Queues that are longer count as this one: beyond it prompts are driven away from their caches
faster than queues get shorter."""


def measure_others(are_idle: Sequence[bool]) -> float:
    """u/(1-u): how many seconds others wait for a second of work, at a queue of length 1.

    `u` is the share of the nodes that had prompts to compute when they last reported; by Laplace's
    rule of succession, since a few nodes are a small sample.
    """
    num_idle = sum(are_idle)
    return (len(are_idle) + 1 - num_idle) / (num_idle + 1)


def measure_length(queue: float, own: float) -> float:
    """(Q + W/2) / S of a queue and a prompt after it, both in requests.

    1 at least, so that work is never cheaper than a usual request's.
    """
    return min(max(queue + own / 2, 1.0), LONGEST)
