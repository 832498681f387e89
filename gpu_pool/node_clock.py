"""The clock by which a node's processes tell each other instants: deadlines, leases.

It is the machine's own since it started, and nobody sets it: a step of the wall clock ends and
extends nothing. What comes from another machine is turned into it on arrival. Must not know what
is timed. Read next: `server.served_model` and `server.hand_over`, which turn it.
"""

import time


def read_node_ms() -> int:
    """Milliseconds; means the same in every process of this machine, and nothing on another."""
    return time.monotonic_ns() // 1_000_000
