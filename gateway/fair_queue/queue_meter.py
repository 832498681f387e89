"""What metrics say of the queue in front of the nodes.

Read next: `gateway.fair_queue.queue`, `gateway.telemetry`.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from contracts.histogram import Times
from contracts.ids import ModelName
from gateway.fair_queue.crowd import Crowd
from gateway.telemetry import Telemetry


class QueueEnd(StrEnum):
    """What becomes of requests that find no node with room."""

    PLACED = "placed"
    """A node has taken it after a wait."""
    BUSY = "busy"
    """It did not want to wait."""
    FULL = "full"
    """There was no room for it to wait in."""
    DISPLACED = "displaced"
    """It waited, and another needed the room more."""
    LATE = "late"
    """No node had room in time."""
    HOPELESS = "hopeless"
    """What it asks for is not offered any more, or not where it may go."""
    LEFT = "left"
    """Its client has left."""
    STOPPED = "stopped"
    """This gateway has."""


class QueueMeter:
    """Counts ends and times waits."""

    def __init__(self, telemetry: Telemetry) -> None:
        """All zero, in `telemetry`."""
        self._telemetry = telemetry
        self._ends = dict.fromkeys(QueueEnd, 0)
        self._waits: dict[str, Times] = {}
        telemetry.watch_counter(
            "hearth_gateway_queue_ends",
            "Requests that found no node with room, by what became of them.",
            "end",
            lambda: self._ends,
        )
        telemetry.watch_times(
            "hearth_gateway_queue_seconds",
            "Waits in the gateway for a node with room, of requests that got one.",
            "model",
            self._waits,
        )

    def watch(self, count_by_model: Callable[[], Mapping[str, float]], crowd: Crowd) -> None:
        """Shows who waits now."""
        self._telemetry.watch_each(
            "hearth_gateway_queue_requests",
            "Requests that wait in the gateway for a node with room.",
            "model",
            count_by_model,
        )
        self._telemetry.watch_gauge(
            "hearth_gateway_queue_tokens",
            "Tokens of those, as far as one can tell; a generated one counts twice.",
            lambda: crowd.num_tokens,
        )
        self._telemetry.watch_gauge(
            "hearth_gateway_queue_bytes",
            "Bytes of those, as they would be sent.",
            lambda: crowd.num_bytes,
        )

    def count_end(self, end: QueueEnd) -> None:
        """A request has come to this."""
        self._ends[end] += 1

    def count_wait(self, model: ModelName, seconds: float) -> None:
        """A request got a node after so long."""
        times = self._waits.get(model)
        if times is None:
            times = self._waits[model] = Times()
        times.observe(seconds)
