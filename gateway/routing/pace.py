"""What a node's word on a model comes to, for all requests that compare the node until the next.

Pure arithmetic over one report. Owns what is believed of rates and counts, and what stands for
those that a node does not say. Read next: `gateway.routing.cost`.
"""

from typing import Final

import msgspec

from contracts.fleet import COMPARED_SEQUENCES, ModelLoad

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


class Pace(msgspec.Struct, frozen=True):
    """How fast a node is and how much it has to do, by its last report. Units: tokens, seconds."""

    is_awake: bool
    """The model is where it can compute. What others have to do says nothing of who sleeps, nor the
    other way round."""
    can_wake: bool
    """Or it can be brought there."""
    wake_s: float
    """Until then."""
    prefill_per_s: float
    """How fast the node computes prompts."""
    decode_per_s: float
    """How fast it generates, with as many requests as all others of which that is said."""
    most_decode_per_s: float
    """The same, with as many as it had lately: more for who had more."""
    tells_step: bool
    """It says how long a step takes it; nodes of before, and those that are new, do not."""
    tells_held: bool
    """It says what its requests hold, or sleeps: there are engines that do not."""
    num_queued: int
    """Of prompts that are still to be computed."""
    num_held: int
    """In KV memory."""
    capacity: int
    """Of KV memory."""
    num_requests: int
    """That it computes, or that wait there."""
    max_running: int
    """Requests that it computes at the same time; 0: it does not say."""


def measure_pace(load: ModelLoad, wake_s: float | None) -> Pace:
    """What the report of a model comes to that can answer in `wake_s`; None: nobody can tell."""
    most_decode_per_s = _believe(load.decode_tokens_per_s, _DEFAULT_DECODE_PER_S)
    tells_step = load.decode_step_s > 0
    by_step = COMPARED_SEQUENCES / load.decode_step_s if tells_step else most_decode_per_s
    capacity = load.num_blocks * load.block_size
    num_held = (load.num_blocks - load.num_free_blocks) * load.block_size
    return Pace(
        load.is_ready,
        wake_s is not None,
        UNKNOWN_WAKE_S if wake_s is None else min(wake_s, UNKNOWN_WAKE_S),
        _believe(load.prefill_tokens_per_s, _DEFAULT_PREFILL_PER_S),
        max(by_step, _SLOWEST_PER_S),
        most_decode_per_s,
        tells_step,
        # Blocks of no size hold nothing, however many requests have some.
        not load.is_ready or (capacity > 0 and (num_held > 0 or not load.num_running)),
        load.num_queued_tokens or load.num_waiting * _UNKNOWN_TOKENS,
        num_held,
        capacity,
        load.num_running + load.num_waiting + load.num_coming,
        load.max_running,
    )


def _believe(per_s: float, default_per_s: float) -> float:
    """A rate as a node says it, and as far as that is believed; 0 is none yet."""
    return max(per_s or default_per_s, _SLOWEST_PER_S)
