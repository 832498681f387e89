"""What shared prefixes save: requests with one long system prompt, with the prefix cache or not.

The real scheduler and the real runner over a random model of the `tiny` shapes; all requests arrive
at once. Every figure is a ratio of two runs in one process: time and computed tokens to the first
token, blocks that a request holds, and requests that run at once in a small memory.
Run: `python -m benchmarks.engine.bench_shared_prefix [--requests 32] [--prompt 1000] [--record]`.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import SequenceId
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

OWN_TOKENS = 24
"""Tokens of each request beside the system prompt."""
OUTPUT_TOKENS = 8
BLOCK_TOKENS = 16
ACCOUNT = AccountId("a" * 32)
PROVIDERS = {True: "cache", False: "no cache"}


@dataclass(slots=True)
class Run:
    """What one crowd of requests took."""

    first_token_s: dict[SequenceId, float] = field(default_factory=dict[SequenceId, float])
    num_cached: list[int] = field(default_factory=list[int])
    num_computed: int = 0
    """Tokens computed in all steps."""
    most_running: int = 0
    num_blocks: int = 0
    """What those held together, at most."""


def create_request(number: int, prompt: list[int]) -> AddSequence:
    """The system prompt, and something of its own behind it."""
    own = [(number * 31 + n) % 8000 for n in range(OWN_TOKENS)]
    return AddSequence(
        sequence_id=SequenceId(number),
        account_id=ACCOUNT,
        cache_salt=b"s" * 32,
        token_ids=(*prompt, *own),
        sampling=SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True, seed=1),
        priority=0,
        deadline_ms=2**50,
        reject_if_busy=False,
    )


def serve(folder: Path, args: argparse.Namespace, num_blocks: int, *, is_cached: bool) -> Run:
    """All requests at once, to the end; one request with the system prompt has gone before."""
    executor = create_executor(WorkerSettings(model_dir=folder, num_blocks=num_blocks))
    settings = SchedulerSettings(max_running=args.requests, prefix_caching=is_cached)
    scheduler = create_scheduler(settings, executor.info, lambda: 1)
    prompt = [n % 8000 for n in range(args.prompt)]
    run = Run()
    for numbers in (range(1), range(1, args.requests + 1)):
        run = Run()
        start_s = time.perf_counter()
        for number in numbers:
            scheduler.add(create_request(number, prompt))
        while scheduler.has_work:
            plan = scheduler.schedule(0)
            if plan is not None:
                run.num_computed += sum(work.num_tokens for work in plan.scheduled)
                load = scheduler.load
                held = (load.num_running, load.num_blocks - load.num_free_blocks)
                run.most_running, run.num_blocks = max(held, (run.most_running, run.num_blocks))
                begun_s = time.perf_counter()
                executor.submit(plan)
                result = executor.collect()
                scheduler.note_step(time.perf_counter() - begun_s)
                scheduler.update(result)
            output = scheduler.take_output()
            for started in output.started if output else ():
                run.num_cached.append(started.num_cached_tokens)
            for tokens in output.tokens if output else ():
                run.first_token_s.setdefault(tokens.sequence_id, time.perf_counter() - start_s)
    executor.close()
    return run


def measure(folder: Path, args: argparse.Namespace, *, is_cached: bool) -> list[Figure]:
    """The figures of one provider: ample memory first, then memory for four requests."""
    each = -(-(args.prompt + OWN_TOKENS + OUTPUT_TOKENS) // BLOCK_TOKENS)
    ample = serve(folder, args, (args.requests + 4) * each, is_cached=is_cached)
    scarce = serve(folder, args, 4 * each, is_cached=is_cached)
    expected = args.prompt // BLOCK_TOKENS * BLOCK_TOKENS if is_cached else 0
    assert ample.num_cached == [expected] * args.requests, "cached_tokens is not exact"
    provider, what, x = PROVIDERS[is_cached], "shared prefix", args.requests
    firsts_ms = [seconds * 1e3 for seconds in ample.first_token_s.values()]
    return [
        summarise(what, provider, "time to first token", "ms", x, firsts_ms),
        summarise(what, provider, "tokens computed", "tokens", x, [ample.num_computed]),
        summarise(
            what,
            provider,
            "blocks per request",
            "blocks",
            x,
            [ample.num_blocks / ample.most_running],
        ),
        summarise(what, provider, "requests that fit", "requests", x, [scarce.most_running]),
    ]


def main() -> None:
    """Prints the figures; `--record` appends them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of the system prompt")
    parser.add_argument("--record", action="store_true", help="append to results/engine_cpu.csv")
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        write_random_llama(Path(name), SHAPES["tiny"], torch.float32)
        figures = [
            figure
            for is_cached in (False, True)
            for figure in measure(Path(name), args, is_cached=is_cached)
        ]
    figures += compute_ratios(figures, PROVIDERS[True])
    print_figures(figures)
    if args.record:
        append_figures("engine_cpu.csv", figures, describe_circumstances(["torch"]))


if __name__ == "__main__":
    main()
