"""Decode steps recorded once per number of rows and replayed: one launch instead of hundreds.

A number of rows is rounded up to one of few sizes; rows of padding are nobody's. A size runs as it
is written when it is met first, which compiles and tunes all that it calls, is recorded when it is
met again, and replayed from then on; all recordings share one pool of memory. Steps in which nobody
filters have recordings of their own, which look for no cut-offs. What is replayed and what runs as
written are the same calls, so the tokens are the same.
Read next: `decode_program`.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import structlog
import torch
from torch import Tensor

from gpu_pool.runner.decode_program import DecodeProgram


class Recording(Protocol):
    """Calls that were recorded."""

    def replay(self) -> Tensor:
        """Makes them again, on the same memory; what they gave, until any recording is replayed."""
        ...


class Recorder(Protocol):
    """Records what a device is asked to do."""

    def record(self, call: Callable[[], Tensor]) -> Recording:
        """The calls of `call`; whether it takes effect meanwhile is the recorder's affair."""
        ...


class CudaRecorder:
    """Records CUDA graphs in a pool of their own."""

    def __init__(self) -> None:
        """The pool is empty."""
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, call: Callable[[], Tensor]) -> Recording:
        """As `Recorder` has it; nothing takes effect."""
        graph = torch.cuda.CUDAGraph()
        # Threads that move KV may go on meanwhile: their calls are not the graph's.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = call()
        return _CudaRecording(graph, result)


class _CudaRecording:
    """One CUDA graph."""

    def __init__(self, graph: Any, result: Tensor) -> None:
        """`result` is where the graph leaves what it computes."""
        self._graph = graph
        self._result = result

    def replay(self) -> Tensor:
        """Launches it."""
        self._graph.replay()
        return self._result


def list_sizes(max_rows: int) -> list[int]:
    """Numbers of rows that are recorded: 1, 2, 4, every 8 to 256, every 16 beyond, and the last."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size < max_rows] + [max_rows]


class DecodeGraphs:
    """The decode steps of one model, by size."""

    def __init__(
        self, program: DecodeProgram, recorder: Recorder | None, sizes: Sequence[int] | None = None
    ) -> None:
        """Without a recorder everything runs as it is written."""
        self._program = program
        self._recorder = recorder
        self._sizes = list_sizes(program.max_rows) if sizes is None else sorted(sizes)
        self._met: set[_Kind] = set()
        self._recordings: dict[_Kind, Recording] = {}
        self.num_replays = 0

    @property
    def max_rows(self) -> int:
        """Steps of more rows are not this one's."""
        return self._sizes[-1]

    @property
    def recorded_sizes(self) -> list[int]:
        """Sizes that are replayed, in rising order."""
        return sorted({kind.num_rows for kind in self._recordings})

    def prepare(self, sizes: Sequence[int]) -> None:
        """Records sizes beforehand, the largest first: smaller ones find room in its pool."""
        for size in sorted(set(sizes) & set(self._sizes), reverse=True):
            for has_filters in (True, False):
                kind = _Kind(size, has_filters)
                self._program.fill((), ())
                self._program.run(size, has_filters=has_filters)
                self._met.add(kind)
                self._record(kind)

    def run(self, places: Sequence[int], positions: Sequence[int], *, has_filters: bool) -> Tensor:
        """The tokens that the rows at `places` draw, `[B]`, valid until the next run."""
        size = self._sizes[bisect_left(self._sizes, len(places))]
        kind = _Kind(size, has_filters)
        if kind not in self._recordings and kind in self._met:
            self._record(kind)
        self._met.add(kind)
        self._program.fill(places, positions)
        recording = self._recordings.get(kind)
        if recording is None:
            return self._program.run(size, has_filters=has_filters)[: len(places)]
        self.num_replays += 1
        return recording.replay()[: len(places)]

    def _record(self, kind: "_Kind") -> None:
        """Records a kind of step, all of whose rows are nobody's meanwhile.

        Where the device refuses (its memory is full, say), nothing more is recorded: what has no
        recording runs as it is written, and answers go on.
        """
        if self._recorder is None:
            return
        self._program.fill((), ())
        try:
            self._recordings[kind] = self._recorder.record(
                lambda: self._program.run(kind.num_rows, has_filters=kind.has_filters)
            )
        except RuntimeError as error:
            self._recorder = None
            structlog.get_logger().warning(
                "no more decode steps are recorded", num_rows=kind.num_rows, reason=str(error)
            )


class _Kind(NamedTuple):
    """Steps that share a recording."""

    num_rows: int
    has_filters: bool
