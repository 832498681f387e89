"""What the engine's bookkeeping costs: schedule + update per step, and hashing per token.

The executor here answers at once and checks nothing, so only our own Python is timed.
Run: `python -m benchmarks.engine.bench_scheduler [--profile] [--record]`.
"""

import argparse
import cProfile
import time
from collections.abc import Callable

from benchmarks.harness import (
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import AddSequence, encoder
from gpu_pool.engine.scheduler import Scheduler
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.plan import ForwardPlan, ForwardResult, SampledTokens, SequenceId

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 512
SIZES = (1, 64, 512)
"""Sequences that decode together."""


def answer(plan: ForwardPlan) -> ForwardResult:
    """A result with token 1 for everyone."""
    sampled = tuple(SampledTokens(w.sequence_id, (1,)) for w in plan.scheduled if w.samples)
    return ForwardResult(plan.step, sampled)


def create_request(sequence_id: int, num_tokens: int) -> AddSequence:
    """A request whose prompt no other request shares."""
    return AddSequence(
        sequence_id=SequenceId(sequence_id),
        account_id=AccountId("a" * 32),
        cache_salt=b"s" * 32,
        token_ids=tuple((sequence_id + n) % 1000 for n in range(num_tokens)),
        sampling=SamplingParams(max_tokens=OUTPUT_TOKENS, seed=1),
        priority=0,
        deadline_ms=2**50,
        reject_if_busy=False,
    )


def create_full_scheduler(num_sequences: int, *, prefix_caching: bool = True) -> Scheduler:
    """A scheduler whose sequences are all past their prompts."""
    info = create_double_info(block_size=16, num_blocks=1 << 16, context_window=1 << 17)
    settings = SchedulerSettings(
        max_running=max(64, num_sequences), prefix_caching=prefix_caching, max_batch_tokens=1 << 17
    )
    scheduler = create_scheduler(settings, info, lambda: 1)
    for sequence_id in range(num_sequences):
        scheduler.add(create_request(sequence_id, PROMPT_TOKENS))
    run_step(scheduler)
    return scheduler


def run_step(scheduler: Scheduler) -> float:
    """Seconds that one step took, output encoded, the executor's share excluded."""
    start_s = time.perf_counter()
    plan = scheduler.schedule(0)
    middle_s = time.perf_counter()
    assert plan is not None
    result = answer(plan)
    resumed_s = time.perf_counter()
    scheduler.update(result)
    output = scheduler.take_output()
    encoder.encode(output)
    return time.perf_counter() - resumed_s + middle_s - start_s


def measure_decode(num_sequences: int, *, prefix_caching: bool) -> list[float]:
    """Seconds of each decode step."""
    scheduler = create_full_scheduler(num_sequences, prefix_caching=prefix_caching)
    return [run_step(scheduler) for _ in range(OUTPUT_TOKENS - 8)]


def measure_prompt(num_tokens: int, *, prefix_caching: bool) -> float:
    """Seconds for adding a request with a long prompt nobody has sent, and for its one step."""
    info = create_double_info(block_size=16, num_blocks=1 << 16, context_window=1 << 17)
    settings = SchedulerSettings(prefix_caching=prefix_caching, max_batch_tokens=1 << 17)
    scheduler = create_scheduler(settings, info, lambda: 1)
    request = create_request(1, num_tokens)
    start_s = time.perf_counter()
    scheduler.add(request)
    return time.perf_counter() - start_s + run_step(scheduler)


def measure_hashing(block_size: int, num_blocks: int = 4096) -> float:
    """Seconds per token of the key chain alone."""
    hasher = BlockHasher("revision", "bfloat16", block_size)
    key = hasher.create_root(b"s" * 32)
    token_ids = list(range(1000, 1000 + block_size))
    start_s = time.perf_counter()
    for _ in range(num_blocks):
        key = hasher.extend(key, token_ids)
    return (time.perf_counter() - start_s) / num_blocks / block_size


def best_of(count: int, measure: Callable[[], float]) -> float:
    """The least of `count` measurements."""
    return min(measure() for _ in range(count))


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", action="store_true", help="append to results/engine_cpu.csv")
    args = parser.parse_args()
    if args.profile:
        scheduler = create_full_scheduler(32)
        profile = cProfile.Profile()
        profile.runcall(lambda: [run_step(scheduler) for _ in range(500)])
        profile.print_stats("tottime")
        return
    figures = [
        summarise(
            "scheduler",
            "cache" if prefix_caching else "no cache",
            "decode step",
            "us",
            num_sequences,
            [s * 1e6 for s in measure_decode(num_sequences, prefix_caching=prefix_caching)],
        )
        for num_sequences in SIZES
        for prefix_caching in (True, False)
    ]
    figures += compute_ratios(figures, "cache")
    print_figures(figures)
    if args.record:
        append_figures("engine_cpu.csv", figures, describe_circumstances(["msgspec"]))
    for prefix_caching in (True, False):
        seconds = best_of(5, lambda on=prefix_caching: measure_prompt(50_000, prefix_caching=on))
        print(f"prompt of 50,000 tokens, cache {prefix_caching!s:5}: {seconds * 1e3:.2f} ms")
    for block_size in (16, 64):
        seconds = best_of(5, lambda size=block_size: measure_hashing(size))
        print(f"hashing, blocks of {block_size}: {seconds * 1e9:.0f} ns per token")


if __name__ == "__main__":
    main()
