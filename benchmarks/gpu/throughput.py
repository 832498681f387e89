"""Many requests at once: the 256-request workload, conversations, and what the prefix cache costs.

Source of the workload: `random.seed(0)`; 256 requests at once; prompts and answers of 100 to 1,024
tokens; the figure is requested output tokens over wall seconds.
"""

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Final

from benchmarks.gpu.bench import OURS, Bench, NotHere
from benchmarks.gpu.load import (
    Run,
    Source,
    Streams,
    carry,
    create_settings,
    draw_requests,
)
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.shapes import BLOCK_SIZE, LLAMA_8B, QWEN_SMALL
from benchmarks.gpu.watching import Watched, describe_use, watch
from benchmarks.harness import Figure, summarise
from gpu_pool.plan import Executor

_CONTEXT: Final = 4096
_BATCH_TOKENS: Final = 16_384
_MEAN_PROMPT, _MEAN_ANSWER = 233, 221
"""Of the conversations that people have shared, as others count them with this load."""
_SPREAD: Final = 1.0
"""Of the logarithm of a length: most are short, few are long."""
_MOST_TOKENS: Final = 2048
_STEPS_OF_A_SIZE: Final = 3
"""One runs as it is written, one is recorded, one is replayed."""
_CUT_SHARE: Final = 0.85
"""Of the time that is left for a section, for its load."""


def measure_workload(bench: Bench) -> list[Figure]:
    """Output tokens per second of the reference workload, 0.6B shapes."""
    return _measure_workload(bench, QWEN_SMALL)


def measure_large_workload(bench: Bench) -> list[Figure]:
    """The same on 8B shapes."""
    return _measure_workload(bench, LLAMA_8B)


def measure_conversations(bench: Bench) -> list[Figure]:
    """4,000 requests, 200 at a time, lengths like those of shared conversations; 0.6B shapes."""
    return _measure_conversations(bench, QWEN_SMALL)


def measure_large_conversations(bench: Bench) -> list[Figure]:
    """The same on 8B shapes; what the time does not suffice for is cut off."""
    return _measure_conversations(bench, LLAMA_8B)


def measure_prefix_cost(bench: Bench) -> list[Figure]:
    """Prompts that nobody has sent before, with the prefix cache and without, in turns."""
    num_requests = bench.pick(256, 8)
    lengths = [(bench.pick(512, 64), bench.pick(128, 8))] * num_requests
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(bench.pick(4, 2)):
        for is_on in (turn % 2 == 0, turn % 2 == 1):
            executor = _create(bench, QWEN_SMALL, sum(map(sum, lengths)) + 16 * len(lengths))
            settings = create_settings(num_requests, _BATCH_TOKENS, prefix_caching=is_on)
            parts = [draw_requests(executor, lengths, seed) for seed in range(bench.pick(4, 3))]
            runs = carry(executor, map(Streams, parts), settings)[1:]
            rates[is_on] += [(run.num_prompt_tokens + run.num_tokens) / run.seconds for run in runs]
            executor.close()
            bench.free_memory()
    what = f"{QWEN_SMALL} prefix cache without hits"
    on, off = (
        summarise(what, OURS, name, "tok/s", num_requests, rates[is_on])
        for name, is_on in (("on", True), ("off", False))
    )
    cost = 100 * (1 - on.p50 / off.p50)
    return [on, off, summarise(what, OURS, "cost", "%", num_requests, [cost])]


def draw_workload(num_requests: int, longest: int) -> list[tuple[int, int]]:
    """Lengths of prompts and answers as the workload's authors draw them.

    They draw the ids of a prompt between the two lengths, and each answer's length behind all
    prompts; whoever draws otherwise gets other sums.
    """
    rng = Random(0)
    shortest = min(100, longest)
    prompts: list[int] = []
    for _ in range(num_requests):
        length = rng.randint(shortest, longest)
        for _ in range(length):
            rng.randint(0, 10_000)
        prompts.append(length)
    return [(length, rng.randint(shortest, longest)) for length in prompts]


def draw_conversations(num_requests: int, most_tokens: int, seed: int = 0) -> list[tuple[int, int]]:
    """Lengths of prompts and answers, with a long tail."""
    rng = Random(seed)

    def draw(mean: float) -> int:
        # The mean of a log-normal distribution is its median times exp(spread^2 / 2).
        length = rng.lognormvariate(0.0, _SPREAD) * mean * 2.718281828 ** (-(_SPREAD**2) / 2)
        return max(4, min(most_tokens, round(length)))

    return [(draw(_MEAN_PROMPT), draw(_MEAN_ANSWER)) for _ in range(num_requests)]


def list_falling_lengths(num_answers: int) -> list[int]:
    """Lengths of answers that begin together, so that several steps are of every multiple of 8
    sequences, and then of 4, 2 and 1.
    """
    lengths: list[int] = []
    num_tokens, num_left = _STEPS_OF_A_SIZE, num_answers
    while num_left:
        fewer = next(size for size in (*range(512, 0, -8), 4, 2, 1, 0) if size < num_left)
        lengths += [num_tokens] * (num_left - fewer)
        num_tokens, num_left = num_tokens + _STEPS_OF_A_SIZE, fewer
    return lengths


def _measure_workload(bench: Bench, name: str) -> list[Figure]:
    """Tokens per second, and what the machine did."""
    lengths = draw_workload(bench.pick(256, 8), bench.pick(1024, 100))
    num_tokens = sum(prompt + answer + BLOCK_SIZE for prompt, answer in lengths)
    executor = _create(bench, name, num_tokens)
    run, watched = _carry(bench, executor, lengths, len(lengths))
    what = f"{name} 256 requests"
    return _describe(bench, run, watched, what, len(lengths))


def _measure_conversations(bench: Bench, name: str) -> list[Figure]:
    """Requests and tokens per second, waiting times, and what the machine did."""
    concurrency = bench.pick(200, 4)
    lengths = draw_conversations(bench.pick(4000, 12), bench.pick(_MOST_TOKENS, 64))
    executor = _create(bench, name, concurrency * bench.pick(_MOST_TOKENS, 128))
    run, watched = _carry(bench, executor, lengths, concurrency)
    if run.was_cut:
        bench.notes.append(f"{name}: {run.num_over} of {len(lengths)} conversations in the time")
    what = f"{name} conversations"
    firsts = [1000 * trace.first_s for trace in run.traces if trace.token_s]
    gaps = [1000 * gap for trace in run.traces for gap in trace.gaps_s]
    return [
        *_describe(bench, run, watched, what, concurrency),
        summarise(what, OURS, "requests", "1/s", concurrency, [run.num_over / run.seconds]),
        summarise(what, OURS, "first token", "ms", concurrency, firsts),
        summarise(what, OURS, "gap", "ms", concurrency, gaps),
    ]


def _describe(bench: Bench, run: Run, watched: Watched, what: str, x: int) -> list[Figure]:
    """What every load tells."""
    rate = run.num_tokens / run.seconds
    prompts = run.num_prompt_tokens / run.seconds
    return [
        summarise(what, OURS, "output", "tok/s", x, [rate]),
        summarise(what, OURS, "prompts", "tok/s", x, [prompts]),
        summarise(what, OURS, "wall time", "s", x, [run.seconds]),
        *describe_use(bench, watched, what, x, rate),
    ]


def _carry(
    bench: Bench, executor: Executor, lengths: list[tuple[int, int]], concurrency: int
) -> tuple[Run, Watched]:
    """The load, watched; cut where the section's time ends. Short answers in batches of every size
    come first, so that what is launched has been compiled and recorded.
    """
    warm = [(bench.pick(200, 20), num_tokens) for num_tokens in list_falling_lengths(concurrency)]
    first, second = draw_requests(executor, warm, 2), draw_requests(executor, lengths, 1)
    watched = Watched()
    with contextlib.ExitStack() as stack:

        def list_parts() -> Iterator[Source]:
            yield Streams(first)
            stack.enter_context(watch(bench, watched))
            yield Streams(second, concurrency)

        settings = create_settings(concurrency, bench.pick(_BATCH_TOKENS, 512))
        runs = carry(executor, list_parts(), settings, limit_s=_CUT_SHARE * bench.left_s)
    executor.close()
    if len(runs) < 2:
        raise NotHere(f"the time did not suffice to begin {len(lengths)} requests")
    return runs[-1], watched


def _create(bench: Bench, name: str, num_tokens: int) -> Executor:
    """A random model with room for so many tokens."""
    context_window = bench.pick(_CONTEXT, 512)
    return create_random_executor(
        bench.find_shapes(name),
        bench.device,
        context_window=context_window,
        num_blocks=max(num_tokens, context_window) // BLOCK_SIZE + 1,
    )
