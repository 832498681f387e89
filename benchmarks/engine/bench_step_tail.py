"""The longest steps of an engine core, and what of them its garbage collector took.

    python -m benchmarks.engine.bench_step_tail                        # two minutes
    python -m benchmarks.engine.bench_step_tail --chats 32 --steps 20000
    python -m benchmarks.engine.bench_step_tail --collector python     # the control: its defaults
    python -m benchmarks.engine.bench_step_tail --collector off

The engine core as it is, without a server: so many chats at any time, each followed by another as
it ends, so that requests arrive and end all the time. A step is what lies between two looks at the
messages. Times are the work of the core's one thread; what passed meanwhile is told beside them.
Rows go to `results/engine_cpu.csv` with `--record`. Read next: `gpu_pool.garbage`.
"""

import argparse
import gc
import os
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.engine.one_thread import create_parser, measure, report
from benchmarks.engine.random_llama import SHAPES
from benchmarks.gpu.load import Load, Trace, create_request, draw_prompt
from benchmarks.harness import Figure
from gpu_pool.engine.messages import AddSequence

_WARM_UP: Final = 200
"""Steps that do not count."""
_PROMPTS: Final = (16, 160)
_ANSWERS: Final = (16, 160)
_THRESHOLDS: Final = (700, 10, 10)
"""Python's own."""


_OVER: Final = Trace(0, 0.0, is_over=True)
"""Stands for every request that is over: what is kept would be walked, which no core keeps."""


class Chats:
    """So many chats at any time until enough steps are over; notes the steps and collections."""

    def __init__(self, options: argparse.Namespace) -> None:
        """`options` are those of this program."""
        self._options = options
        self._rng = Random(1)
        self._num_requests = 0
        self._live: list[int] = []
        """Places of requests that are not over."""
        self._began: tuple[float, float] | None = None
        self._collection_began_s = 0.0
        self._is_decode = False
        self._num_steps = 0
        self.work_s = array("d")
        """Of each step that counts."""
        self.decode_s = array("d")
        """Of those to which nobody came, and no prompt was left to compute."""
        self.passed_s = array("d")
        self.collections_s: tuple[list[float], ...] = ([], [], [])
        """What each took, by generation."""
        self.num_freed = 0

    def take(self, load: Load) -> Sequence[AddSequence] | None:
        """Chats where others have ended."""
        if len(self.work_s) == self._options.steps:
            return None
        self._note_step()
        if self._num_steps == _WARM_UP:
            set_collector(self._options.collector)
            gc.callbacks.append(self._note_collection)
        if len(self.work_s) == self._options.steps:
            gc.callbacks.remove(self._note_collection)
            return None
        news = [self._create() for _ in range(self._options.chats - load.num_running)]
        self._live = [index for index in self._live if not self._forget(load, index)]
        self._is_decode = not news and all(load.traces[index].token_s for index in self._live)
        self._live += range(len(load.traces), len(load.traces) + len(news))
        self._began = time.thread_time(), time.perf_counter()
        return news

    @staticmethod
    def _forget(load: Load, index: int) -> bool:
        """Whether that request is over; nothing of it is kept then."""
        is_over = load.traces[index].is_over
        if is_over:
            load.traces[index] = _OVER
        return is_over

    def _note_step(self) -> None:
        """The step that has just ended, if one had begun."""
        if self._began is None:
            return
        work_s, passed_s = self._began
        self._num_steps += 1
        if self._num_steps > _WARM_UP:
            work_s, passed_s = time.thread_time() - work_s, time.perf_counter() - passed_s
            self.work_s.append(work_s)
            self.passed_s.append(passed_s)
            if self._is_decode:
                self.decode_s.append(work_s)

    def _note_collection(self, phase: str, info: dict[str, Any]) -> None:
        """What Python tells of a collection that begins or ends."""
        now_s = time.thread_time()
        if phase == "start":
            self._collection_began_s = now_s
        else:
            self.collections_s[info["generation"]].append(now_s - self._collection_began_s)
            self.num_freed += info["collected"]

    def _create(self) -> AddSequence:
        self._num_requests += 1
        num_prompt, num_answer = self._rng.randint(*_PROMPTS), self._rng.randint(*_ANSWERS)
        prompt = draw_prompt(self._rng, num_prompt, SHAPES[self._options.shapes].vocab_size)
        return create_request(self._num_requests, prompt, num_answer, temperature=0.0)


def set_collector(name: str) -> None:
    """Sets Python's collector as it is called; `settled` leaves it as a core has it."""
    if name == "python":
        gc.unfreeze()
        gc.set_threshold(*_THRESHOLDS)
    elif name == "off":
        gc.disable()


def describe(chats: Chats, options: argparse.Namespace) -> list[Figure]:
    """The rows of a run."""
    what = f"{options.shapes} bfloat16 1t, CPU time, {options.steps} steps"
    kinds = {
        "step": chats.work_s,
        "decode step": chats.decode_s,
        "step as it passed": chats.passed_s,
    }
    values: dict[str, tuple[float, str]] = {}
    for kind, seconds in kinds.items():
        ordered = sorted(seconds)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0)):
            values[f"{kind}, {name}"] = ordered[int(share * (len(ordered) - 1))] * 1e3, "ms"
    for generation, seconds in enumerate(chats.collections_s):
        values[f"collections of generation {generation}"] = len(seconds), "collections"
    collections_s = [one_s for seconds in chats.collections_s for one_s in seconds]
    values["collections together"] = sum(collections_s) * 1e3, "ms"
    values["longest collection"] = max(collections_s, default=0.0) * 1e3, "ms"
    values["objects in cycles"] = chats.num_freed, "objects"
    return [
        Figure(what, options.collector, metric, unit, options.chats, *[value] * 3)
        for metric, (value, unit) in values.items()
    ]


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = create_parser(__doc__, "tiny")
    parser.add_argument("--chats", type=int, default=8, help="at once")
    parser.add_argument("--steps", type=int, default=20_000)
    collectors = ("settled", "python", "off")
    parser.add_argument("--collector", choices=collectors, default="settled")
    options = parser.parse_args()
    chats = Chats(options)

    def run(folder: Path) -> list[Figure]:
        measure(folder, options, chats)
        return describe(chats, options)

    return report(options, run)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
