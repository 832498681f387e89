"""How many requests more a node should get now: enough to keep it busy, and a short line before it.

What waits at a node can go nowhere else any more, so that all beyond that waits in the gateway, for
whichever node is the first to have room. Pure arithmetic over a node's last report and what has
become of it since. Read next: `gateway.routing.choose_node`, `gateway.fair_queue.queue`.
"""

from contracts.fleet import ModelLoad
from gateway.routing.route_plan import RouteBounds, Sent


def count_room(load: ModelLoad, sent: Sent, bounds: RouteBounds) -> int:
    """Requests that the node should get at most before it says more; below 1 it is saturated.

    Its free places, and then as many as may wait. Where some wait already none is free: it is
    memory that it lacks. The same once more was sent than its memory had room for. Of those that
    the report counts no more can be over than it counts: it was on its way as some came.
    """
    free_tokens = load.num_free_blocks * load.block_size
    is_full = load.num_waiting > 0 or (load.num_blocks > 0 and sent.num_tokens >= free_tokens)
    num_taken = load.num_running + load.num_coming
    num_free = 0 if is_full else max(load.max_running - num_taken, 0)
    num_over = min(sent.num_over, num_taken + load.num_waiting)
    num_coming = sent.num_requests - num_over
    return num_free + bounds.max_waiting_per_model - load.num_waiting - num_coming
