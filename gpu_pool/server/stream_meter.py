"""How long requests wait at this node, how fast their tokens come and how they end.

Plain counts on the hot path, without any label that names a tenant; must not know texts.
Read next: `wire.stream` (the caller), `node_metrics` (what becomes of the counts).
"""

from collections.abc import Callable
from typing import Final

from contracts.histogram import GAP_BOUNDS_S, Times
from contracts.ids import ModelName
from contracts.inference import Usage
from gpu_pool.server.stream_trace import LOST, NO_TRACER, NOT_TRACED, NodeTracer, StreamTrace


class ModelCounts:
    """What all requests of one model came to."""

    __slots__ = ("ends", "first_token", "gaps", "queue", "tokens")

    def __init__(self) -> None:
        """All zero."""
        self.queue: Final = Times()
        self.first_token: Final = Times()
        self.gaps: Final = Times(GAP_BOUNDS_S)
        self.ends: Final[dict[str, int]] = {}
        """By finish reason or error code."""
        self.tokens: Final = [0, 0, 0]
        """Of prompts, cached ones among them, generated."""


class StreamMeter:
    """One request's times; each method is called when its moment has come."""

    __slots__ = ("_began_s", "_counts", "_latest_s", "_monotonic_s", "_trace")

    def __init__(
        self,
        counts: ModelCounts,
        monotonic_s: Callable[[], float],
        trace: StreamTrace = NOT_TRACED,
    ) -> None:
        """The request is there in full."""
        self._counts = counts
        self._monotonic_s = monotonic_s
        self._trace = trace
        self._began_s = monotonic_s()
        self._latest_s = 0.0

    def note_accepted(self, cold_s: float = 0.0) -> None:
        """It is being computed, after it has waited `cold_s` for its model to come."""
        waited_s = self._monotonic_s() - self._began_s
        self._counts.queue.observe(waited_s)
        self._trace.note_accepted(cold_s, waited_s)

    def note_tokens(self) -> None:
        """Some of its tokens have come."""
        now_s = self._monotonic_s()
        if self._latest_s:
            self._counts.gaps.observe(now_s - self._latest_s)
        else:
            self._counts.first_token.observe(now_s - self._began_s)
            self._trace.note_first_token(now_s - self._began_s)
        self._latest_s = now_s

    def note_end(self, how: str, usage: Usage | None) -> None:
        """It is over."""
        counts = self._counts
        counts.ends[how] = counts.ends.get(how, 0) + 1
        if usage is not None:
            counts.tokens[0] += usage.num_prompt_tokens
            counts.tokens[1] += usage.num_cached_tokens
            counts.tokens[2] += usage.num_completion_tokens
        self._end_trace(how, usage)

    def note_lost(self) -> None:
        """Nobody waits for it any more: its connection has ended."""
        self._end_trace(LOST, None)

    def _end_trace(self, how: str, usage: Usage | None) -> None:
        """Tells of the end where somebody hears it."""
        if self._trace is not NOT_TRACED:
            self._trace.end(self._monotonic_s() - self._began_s, how, usage)


class NodeMeter:
    """The counts of all models; belongs to one event loop."""

    def __init__(self, monotonic_s: Callable[[], float], tracer: NodeTracer = NO_TRACER) -> None:
        """Nothing counted."""
        self._monotonic_s = monotonic_s
        self.tracer: Final = tracer
        self.counts: Final[dict[ModelName, ModelCounts]] = {}

    def open(self, model: ModelName, trace: StreamTrace = NOT_TRACED) -> StreamMeter:
        """The meter of one request for a model that this node has."""
        counts = self.counts.get(model)
        if counts is None:
            counts = self.counts[model] = ModelCounts()
        return StreamMeter(counts, self._monotonic_s, trace)
