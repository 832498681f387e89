"""A burst of requests at one core of this CPU: when first tokens come, and how long answers stop.

    python -m benchmarks.engine.bench_burst                                  # half a minute
    python -m benchmarks.engine.bench_burst --shapes qwen3-0.6b-like-llama   # some minutes
    python -m benchmarks.engine.bench_burst --max-pause-ms 0                 # whole steps
    python -m benchmarks.engine.bench_burst --accounts 32                    # each its own account

The engine core as it is, without a server, all requests at once. Time is the work of the core's one
thread, so that other processes do not count, though they share its caches. Rows go to
`results/engine_cpu.csv` with `--record`. Read next: `benchmarks.engine.bench_pauses` (one prompt
beside answers), `gpu_pool.engine.prompt_pace`.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from benchmarks.engine.one_thread import create_parser, measure, name_pause, report
from benchmarks.engine.random_llama import SHAPES
from benchmarks.gpu.load import Load, Run, create_request, draw_prompt
from benchmarks.harness import Figure
from contracts.ids import AccountId
from gpu_pool.engine.messages import AddSequence


class Burst:
    """All requests at once, and none after them."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Prompts are random tokens, of which no two begin alike."""
        self._options = options
        self._is_sent = False

    def take(self, load: Load) -> Sequence[AddSequence] | None:
        """The requests; None once they are all answered."""
        if self._is_sent:
            return None if all(trace.is_over for trace in load.traces) else ()
        self._is_sent = True
        return [self._create(number) for number in range(self._options.count)]

    def _create(self, number: int) -> AddSequence:
        options = self._options
        vocab_size = SHAPES[options.shapes].vocab_size
        prompt = draw_prompt(Random(number), options.prompt, vocab_size)
        request = create_request(number + 1, prompt, options.answer, temperature=0.0)
        account_id = AccountId(f"{number % options.accounts:032x}")
        return msgspec.structs.replace(request, account_id=account_id)


def compute(folder: Path, options: argparse.Namespace) -> Run:
    """What became of all requests, with room for all."""
    num_blocks = options.count * ((options.prompt + options.answer) // 16 + 2)
    return measure(folder, options, Burst(options), num_blocks)


def describe(run: Run, options: argparse.Namespace) -> list[Figure]:
    """The rows of a run."""
    what = f"{options.count} x {options.prompt} + {options.answer} at once"
    if options.accounts > 1:
        what += f", {options.accounts} accounts"
    pause = name_pause(options)
    firsts = sorted(trace.first_s for trace in run.traces)
    gaps = sorted(gap for trace in run.traces for gap in trace.gaps_s)
    values = {
        "TTFT p50": statistics.median(firsts),
        "mean TTFT": statistics.mean(firsts),
        "last first token": firsts[-1],
        "gap p90": gaps[int(0.9 * (len(gaps) - 1))],
        "gap p99": gaps[int(0.99 * (len(gaps) - 1))],
        "longest gap": gaps[-1],
        "all done": run.seconds,
    }
    return [
        Figure(
            f"{options.shapes} bfloat16 1t, CPU time, {what}", pause, metric, "s", 1, *[value] * 3
        )
        for metric, value in values.items()
    ]


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = create_parser(__doc__, "50m")
    parser.add_argument("--count", type=int, default=32, help="requests")
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--answer", type=int, default=64, help="tokens")
    parser.add_argument("--accounts", type=int, default=1, help="that share the requests")
    options = parser.parse_args()
    return report(options, lambda folder: describe(compute(folder, options), options))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
