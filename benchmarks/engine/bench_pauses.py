"""How long answers stop while prompts are computed beside them, on one core of this CPU.

    python -m benchmarks.engine.bench_pauses                       # a minute
    python -m benchmarks.engine.bench_pauses --shapes 50m --interval 6 --chats 4 --seconds 30
    python -m benchmarks.engine.bench_pauses --max-pause-ms 0      # steps as large as there is room

The engine core as it is, without a server: chats follow one another without a pause, and a longer
prompt comes every few seconds. Time is the work of the core's one thread, so that other processes
do not count, though they share its caches. Rows go to `results/engine_cpu.csv` with `--record`.
Read next: `gpu_pool.engine.prompt_pace`.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Final

from benchmarks.engine.one_thread import create_parser, measure, name_pause, report
from benchmarks.engine.random_llama import SHAPES
from benchmarks.gpu.load import Load, Run, create_request, draw_prompt
from benchmarks.harness import Figure
from gpu_pool.engine.messages import AddSequence

_CHAT_PROMPT: Final = 20
_CHAT_ANSWER: Final = 96


class Beside:
    """So many chats at any time, and a prompt every so many seconds."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Prompts are of `options.prompt` random tokens, of which no two begin alike."""
        self._options = options
        self._numbers = count(1)
        self._began_s: float | None = None
        self._num_prompts = 0

    def take(self, load: Load) -> Sequence[AddSequence] | None:
        """Chats where others have ended, and the prompt whose time has come."""
        options = self._options
        if self._began_s is None:
            self._began_s = load.clock()
        passed_s = load.clock() - self._began_s
        if passed_s > options.seconds:
            return None
        num_chats = sum(is_chat and not is_over for is_chat, is_over in _list_states(load))
        wanted = [(_CHAT_PROMPT, _CHAT_ANSWER)] * (options.chats - num_chats)
        if passed_s > (self._num_prompts + 0.5) * options.interval:
            self._num_prompts += 1
            wanted.append((options.prompt, 2))
        return [self._create(*lengths) for lengths in wanted]

    def _create(self, num_prompt: int, num_answer: int) -> AddSequence:
        number = next(self._numbers)
        prompt = draw_prompt(Random(number), num_prompt, SHAPES[self._options.shapes].vocab_size)
        return create_request(number, prompt, num_answer, temperature=0.0)


def _list_states(load: Load) -> list[tuple[bool, bool]]:
    """Of each request, whether it is a chat and whether it is over."""
    return [(trace.num_prompt_tokens == _CHAT_PROMPT, trace.is_over) for trace in load.traces]


def describe(run: Run, options: argparse.Namespace) -> list[Figure]:
    """The rows of a run."""
    what = f"{options.chats} chats, a prompt of {options.prompt} every {options.interval:g} s"
    pause = name_pause(options)
    chats = [trace for trace in run.traces if trace.num_prompt_tokens == _CHAT_PROMPT]
    gaps = sorted(gap for trace in chats for gap in trace.gaps_s)
    waits = [t.first_s for t in run.traces if t.num_prompt_tokens != _CHAT_PROMPT and t.token_s]
    values = {
        "gap p50": (_find(gaps, 0.5) * 1000, "ms"),
        "gap p90": (_find(gaps, 0.9) * 1000, "ms"),
        "gap p99": (_find(gaps, 0.99) * 1000, "ms"),
        "longest gap": (gaps[-1] * 1000, "ms"),
        "TTFT of prompts p50": (statistics.median(waits) * 1000, "ms"),
        "tokens of chats": (sum(len(trace.token_s) for trace in chats) / run.seconds, "1/s"),
    }
    return [
        Figure(
            f"{options.shapes} bfloat16 1t, CPU time, {what}", pause, metric, unit, 1, *[value] * 3
        )
        for metric, (value, unit) in values.items()
    ]


def _find(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = create_parser(__doc__, "tiny")
    parser.add_argument("--chats", type=int, default=8, help="at once")
    parser.add_argument("--prompt", type=int, default=600, help="tokens")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between prompts")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    return report(
        options, lambda folder: describe(measure(folder, options, Beside(options)), options)
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
