"""How long one waits: a step of one sequence, a prompt, and others while a long prompt is computed.

Times are those of tokens leaving the engine core, so that scheduling is part of them.
Read next: `load`.
"""

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Final

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.load import (
    Load,
    Run,
    Streams,
    carry,
    create_settings,
    draw_requests,
)
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.shapes import BLOCK_SIZE, LLAMA_8B, QWEN_4B, QWEN_8B, QWEN_SMALL
from benchmarks.harness import Figure, summarise
from gpu_pool.engine.messages import AddSequence, ToCore
from gpu_pool.plan import Executor

_STEP_CONTEXT: Final = 1000
_WARM_STEPS: Final = 8
"""Of each answer, not counted: kernels are compiled and graphs recorded in the first run."""
_BATCH_TOKENS: Final = 16_384


def measure_decode_step(bench: Bench) -> list[Figure]:
    """Milliseconds of a step of one sequence at a context of about 1,000 tokens, per model."""
    figures: list[Figure] = []
    context = bench.pick(_STEP_CONTEXT, 100)
    num_steps = bench.pick(128, 12)
    for name in (LLAMA_8B, QWEN_8B, QWEN_4B, QWEN_SMALL):
        executor = _create(bench, name, context + num_steps + BLOCK_SIZE)
        parts = [_draw(executor, [context], num_steps, seed) for seed in range(2)]
        runs = carry(executor, parts, create_settings(1, bench.pick(_BATCH_TOKENS, 512)))
        steps = [1000 * gap for gap in runs[-1].traces[0].gaps_s[_WARM_STEPS:]]
        figures.append(summarise(f"{name} decode", OURS, "step", "ms", 1, steps))
        executor.close()
        bench.free_memory()
    return figures


def measure_decode_batches(bench: Bench) -> list[Figure]:
    """Milliseconds of a step of so many sequences with contexts of about 600 tokens."""
    figures: list[Figure] = []
    most = bench.pick(256, 4)
    context, num_steps = bench.pick(600, 40), bench.pick(48, 12)
    executor = _create(bench, LLAMA_8B, context + num_steps + BLOCK_SIZE, most - 1)
    sizes = [size for size in (2, 4, 8, 16, 32, 64, 128, 256) if size <= most]
    parts = [
        _draw(executor, [context] * size, num_steps, seed) for size in sizes for seed in range(2)
    ]
    runs = carry(executor, parts, create_settings(most, bench.pick(_BATCH_TOKENS, 512)))
    for size, run in zip(sizes, runs[1::2], strict=True):
        # Prompts are computed first; from then on all answers go on together.
        together_s = max(trace.token_s[0] for trace in run.traces)
        times_s = [time_s for time_s in run.traces[0].token_s if time_s >= together_s]
        steps = [1000 * (after_s - before_s) for before_s, after_s in pairwise(times_s)]
        figures.append(summarise(f"{LLAMA_8B} decode", OURS, "step", "ms", size, steps))
    executor.close()
    return figures


def measure_prefill(bench: Bench) -> list[Figure]:
    """Tokens of one prompt per second, and the time to its first token."""
    figures: list[Figure] = []
    lengths = bench.pick((128, 1024, 8192, 32768), (32, 128))
    executor = _create(bench, LLAMA_8B, max(lengths) + BLOCK_SIZE)
    counts = [bench.pick(max(3, min(20, 16384 // length)), 2) + 1 for length in lengths]
    parts = [
        _draw(executor, [length], 1, seed)
        for length, count in zip(lengths, counts, strict=True)
        for seed in range(count)
    ]
    found = iter(carry(executor, parts, create_settings(1, bench.pick(_BATCH_TOKENS, 512))))
    for length, count in zip(lengths, counts, strict=True):
        runs = list(islice(found, count))[1:]
        firsts_s = [run.traces[0].first_s for run in runs]
        rates = [length / first_s for first_s in firsts_s]
        firsts_ms = [1000 * first_s for first_s in firsts_s]
        figures.append(summarise(f"{LLAMA_8B} prefill", OURS, "rate", "tok/s", length, rates))
        figures.append(
            summarise(f"{LLAMA_8B} prefill", OURS, "first token", "ms", length, firsts_ms)
        )
    executor.close()
    return figures


def measure_gaps(bench: Bench) -> list[Figure]:
    """Gaps between tokens of running answers, steady and while a prompt of 32,768 is computed.

    By the most tokens of a step, which the operator chooses: x is that number.
    """
    figures: list[Figure] = []
    length = bench.pick(32768, 512)
    num_streams, context = bench.pick(16, 2), bench.pick(500, 40)
    num_tokens = bench.pick(600, 60)
    for budget in bench.pick((256, 512, 2048), (64, 256)):
        executor = _create(
            bench, LLAMA_8B, length + BLOCK_SIZE, num_streams, context + num_tokens + BLOCK_SIZE
        )
        warm = _LongPrompt(
            _list_requests(executor, [context] * num_streams, 4 * _WARM_STEPS, 0),
            *_list_requests(executor, [length // 8], 1, 0),
            steady_tokens=_WARM_STEPS,
        )
        source = _LongPrompt(
            _list_requests(executor, [context] * num_streams, num_tokens, 1),
            *_list_requests(executor, [length], 1, 1),
            steady_tokens=bench.pick(200, 12),
        )
        settings = create_settings(num_streams + 1, budget)
        runs = carry(executor, [warm, source], settings, limit_s=bench.pick(40, 60))
        figures += _list_gaps(runs[-1], budget)
        executor.close()
        bench.free_memory()
    return figures


class _LongPrompt:
    """Streams, then one long prompt beside them."""

    def __init__(
        self, streams: Sequence[AddSequence], prompt: AddSequence, steady_tokens: int
    ) -> None:
        """The prompt comes once every stream has had so many tokens."""
        self._streams = list(streams)
        self._waiting = [prompt]
        self._steady_tokens = steady_tokens

    def take(self, load: Load) -> Sequence[ToCore] | None:
        """The next."""
        if self._streams:
            taken, self._streams = self._streams, []
            return taken
        if not self._waiting:
            return None
        steady = min(len(trace.token_s) for trace in load.traces)
        return [self._waiting.pop()] if steady >= self._steady_tokens else []


def _list_gaps(run: Run, budget: int) -> list[Figure]:
    """The gaps of all streams before and during the long prompt."""
    streams, prompt = run.traces[:-1], run.traces[-1]
    assert prompt.token_s, f"the long prompt was not over in time with steps of {budget} tokens"
    together_s = max(trace.token_s[0] for trace in streams)
    steady: list[float] = []
    during: list[float] = []
    for trace in streams:
        for before_s, after_s in pairwise(trace.token_s):
            if together_s < before_s and after_s < prompt.added_s:
                steady.append(1000 * (after_s - before_s))
            elif after_s > prompt.added_s and before_s < prompt.token_s[0]:
                during.append(1000 * (after_s - before_s))
    p99 = [_find_p99(gaps) for gaps in (steady, during)]
    what = f"{LLAMA_8B} beside a long prompt"
    rate = prompt.num_prompt_tokens / prompt.first_s
    return [
        summarise(what, OURS, "steady gap", "ms", budget, steady),
        summarise(what, OURS, "steady gap p99", "ms", budget, p99[:1]),
        summarise(what, OURS, "gap p99", "ms", budget, p99[1:]),
        summarise(what, OURS, "gap p99 over steady p99", "ratio", budget, [p99[1] / p99[0]]),
        summarise(what, OURS, "prompt's rate", "tok/s", budget, [rate]),
    ]


def _find_p99(samples: Sequence[float]) -> float:
    """The value that one in a hundred is above."""
    return sorted(samples)[min(len(samples) - 1, len(samples) * 99 // 100)]


def _create(
    bench: Bench, name: str, num_tokens: int, num_others: int = 0, num_others_tokens: int = 0
) -> Executor:
    """A random model with room for a sequence of so many tokens, and for others: as long, unless
    their length is told.
    """
    num_all = num_tokens + num_others * (num_others_tokens or num_tokens)
    return create_random_executor(
        bench.find_shapes(name),
        bench.device,
        context_window=num_tokens,
        num_blocks=num_all // BLOCK_SIZE + 2 * num_others + 2,
    )


def _draw(executor: Executor, lengths: Sequence[int], num_tokens: int, seed: int) -> Streams:
    """Requests for answers of so many tokens to prompts of these lengths, all at once."""
    return Streams(_list_requests(executor, lengths, num_tokens, seed))


def _list_requests(
    executor: Executor, lengths: Sequence[int], num_tokens: int, seed: int
) -> list[AddSequence]:
    """The same as a list."""
    return draw_requests(executor, [(length, num_tokens) for length in lengths], seed)
