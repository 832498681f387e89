"""What several choices of one request cost, and what of it copying a block would save.

    python -m benchmarks.engine.bench_choices                                            # a minute
    python -m benchmarks.engine.bench_choices --shapes qwen3-0.6b-like-llama --rounds 3

The real scheduler and the real runner on one thread, by that thread's own time. As behind a node,
later choices come one step after the first has told a token. They share the whole blocks of the
prompt; the tokens of its last block, the tail, are computed by each. One token is computed in any
case, for there to be something to draw from, so a tail of one is what copying that block would
leave: ratios are to it. Rows go to `results/engine_cpu.csv` with `--record`.
Read next: `gpu_pool.server.generation`.
"""

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from benchmarks.engine.one_thread import create_parser, report
from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.gpu.load import create_request, draw_prompt
from benchmarks.harness import Figure, compute_ratios, summarise
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.scheduler import Scheduler
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.garbage import settle_garbage
from gpu_pool.plan import Executor, SequenceId
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor

BLOCK_TOKENS, ANSWER_TOKENS = 16, 64
TAILS = (1, 8, 16)
COPIED = f"tail of {TAILS[0]}"


@dataclass(frozen=True, slots=True)
class Cost:
    """One request. Units: seconds of the thread's work."""

    everything_s: float
    last_first_s: float
    """Until each choice had told a token."""
    num_computed: int
    """Tokens, of prompts and answers."""


def serve(scheduler: Scheduler, executor: Executor, choices: Sequence[AddSequence]) -> Cost:
    """One request to its end."""
    clock, first_s = time.thread_time, dict[SequenceId, float]()
    num_computed, later = 0, list(choices[1:])
    began_s = clock()
    scheduler.add(choices[0])
    while scheduler.has_work:
        if first_s and later and num_computed > len(choices[0].token_ids):
            for choice in later:
                scheduler.add(choice)
            later.clear()
        plan = scheduler.schedule(0)
        assert plan is not None
        num_computed += sum(work.num_tokens for work in plan.scheduled)
        submitted_s = clock()
        executor.submit(plan)
        result = executor.collect()
        scheduler.note_step(clock() - submitted_s)
        scheduler.update(result)
        output = scheduler.take_output()
        for tokens in output.tokens if output else ():
            first_s.setdefault(tokens.sequence_id, clock() - began_s)
    assert len(first_s) == len(choices), "a choice was not answered"
    return Cost(clock() - began_s, max(first_s.values()), num_computed)


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """All figures of one model; tails take turns in each round, behind one that warms up."""
    write_random_llama(folder, SHAPES[options.shapes], torch.bfloat16)
    most = max(options.prompts) + BLOCK_TOKENS + ANSWER_TOKENS
    executor = create_executor(
        WorkerSettings(
            model_dir=folder,
            dtype=DtypeChoice.BFLOAT16,
            num_threads=1,
            block_size=BLOCK_TOKENS,
            num_blocks=2 * max(options.choices) * (most // BLOCK_TOKENS + 1),
        )
    )
    scheduler = create_scheduler(
        SchedulerSettings(max_pause_ms=options.max_pause_ms), executor.info, lambda: 1
    )
    settle_garbage()
    rng, number, costs = Random(1), 1, defaultdict[tuple[int, int, int], list[Cost]](list)
    for round_number in range(options.rounds + 1):
        for whole in options.prompts:
            for num_choices in options.choices:
                for tail in TAILS:
                    num_tokens = whole // BLOCK_TOKENS * BLOCK_TOKENS + tail
                    prompt = draw_prompt(rng, num_tokens, executor.info.vocab_size)
                    choices = [
                        create_request(number + place, prompt, ANSWER_TOKENS, temperature=1.0)
                        for place in range(num_choices)
                    ]
                    number += num_choices
                    cost = serve(scheduler, executor, choices)
                    if round_number:
                        costs[whole, num_choices, tail].append(cost)
    executor.close()
    figures: list[Figure] = []
    for (whole, num_choices, tail), found in costs.items():
        what = f"{options.shapes} bfloat16 1t, CPU time, choices of {whole} + {ANSWER_TOKENS}"
        samples = {
            ("everything", "ms"): [1e3 * cost.everything_s for cost in found],
            ("last first token", "ms"): [1e3 * cost.last_first_s for cost in found],
            ("tokens computed", "tokens"): [cost.num_computed for cost in found],
        }
        for (metric, unit), values in samples.items():
            provider = f"tail of {tail}"
            figures.append(summarise(what, provider, metric, unit, num_choices, values))
    for tail in TAILS[1:]:
        both = {COPIED, f"tail of {tail}"}
        pair = [figure for figure in figures if figure.provider in both]
        figures += compute_ratios(pair, f"tail of {tail}")
    return figures


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = create_parser(__doc__, "tiny")
    parser.add_argument("--prompts", type=int, nargs="+", default=[96, 992], help="whole blocks")
    parser.add_argument("--choices", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    return report(options, lambda folder: measure(options, folder))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
