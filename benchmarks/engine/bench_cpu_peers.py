"""Hearth beside llama.cpp and vLLM on this CPU: whole servers, one checkpoint, interleaved rounds.

    python -m benchmarks.engine.cpu_peers /tmp/cpu-peers                  # installs them
    python -m benchmarks.engine.bench_cpu_peers --peers /tmp/cpu-peers

Qwen3-0.6B's shapes in bf16; prompts of 128 random token ids that no server has seen, answers of 64
tokens, streamed, greedy. Every round starts each server afresh. A burst sends all prompts at once:
with one token of answer (`prefill`; the third of three, `first prefill` is the first, which writes
memory that nobody has written yet), then with all (`decode step` is the difference, for each
further token). `start` is from the processes' start to the end of a first answer of eight tokens,
some seconds before the bursts, of a model in the form that each server keeps: llama.cpp's is GGUF,
ours is prepared as `hearth models add` does. `memory` is after everything. Nothing else should run:
servers and clients share the cores. Appends to `results/cpu_peers.csv`; the rows that count are the
ratios.
"""

import argparse
import asyncio
import itertools
import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import aiohttp

from benchmarks.engine.cpu_peers import CHECKPOINT, VOCABULARY_SIZE, find_llama
from benchmarks.engine.cpu_servers import (
    NUM_THREADS,
    ONEDNN_LEVELS,
    SERVERS,
    Launch,
    measure_memory_bytes,
    run,
)
from benchmarks.engine.offline_bursts import ANSWER_TOKENS, PROMPT_TOKENS, SETTLE_S
from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)

RESULTS = "cpu_peers.csv"
PACKAGES = ("torch", "transformers")
FIRST_ANSWER_TOKENS = 8
PATIENCE_S = 600
"""Until a server has answered for the first time; vLLM compiles."""

Samples: TypeAlias = dict[tuple[str, str, str, int], list[float]]
"""By provider, metric, unit and number of sequences."""


@dataclass(slots=True)
class Burst:
    """What clients saw who all asked at once. Units: seconds."""

    begun_s: float
    ended_s: float = 0.0
    first_s: list[float] = field(default_factory=list[float])
    """Of every stream, from the burst's start."""
    gaps_s: list[float] = field(default_factory=list[float])
    """Between the events of a stream."""

    @property
    def length_s(self) -> float:
        """Until the last answer was whole."""
        return self.ended_s - self.begun_s


async def send_burst(
    launch: Launch,
    num_sequences: int,
    num_tokens: int,
    seed: int,
    vocabulary_size: int = VOCABULARY_SIZE,
) -> Burst:
    """All prompts at once, each on a connection of its own.

    Raises: `RuntimeError` when an answer is no answer or has another number of tokens.
    """
    draw = random.Random(seed)
    prompts = [
        [draw.randrange(300, vocabulary_size) for _ in range(PROMPT_TOKENS)]
        for _ in range(num_sequences)
    ]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        burst = Burst(time.perf_counter())
        await asyncio.gather(*(_ask(session, launch, ids, num_tokens, burst) for ids in prompts))
        burst.ended_s = time.perf_counter()
    return burst


async def _ask(
    session: aiohttp.ClientSession,
    launch: Launch,
    ids: Sequence[int],
    num_tokens: int,
    burst: Burst,
) -> None:
    body = {
        "model": launch.model,
        "prompt": ids,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {launch.api_token}"}
    times_s: list[float] = []
    num_answered = 0
    async with session.post(launch.url, json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"{launch.provider}: {response.status} {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                times_s.append(time.perf_counter())
            num_answered = (event.get("usage") or {}).get("completion_tokens", num_answered)
    if num_answered != num_tokens or not times_s:
        raise RuntimeError(f"{launch.provider}: {num_answered} of {num_tokens} tokens came")
    burst.first_s.append(times_s[0] - burst.begun_s)
    burst.gaps_s += [after - before for before, after in itertools.pairwise(times_s)]


async def wait_until_it_answers(launch: Launch, seed: int) -> None:
    """Returns at the end of a first answer. Raises: `TimeoutError`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await send_burst(launch, 1, FIRST_ANSWER_TOKENS, seed)
            except (aiohttp.ClientError, RuntimeError):
                await asyncio.sleep(0.05)
            else:
                return


def measure(launch: Launch, counts: Sequence[int], seed: int, log: Path, samples: Samples) -> None:
    """One start of one server, and every number of sequences."""

    def note(metric: str, unit: str, x: int, value: float) -> None:
        samples[launch.provider, metric, unit, x].append(value)

    begun_s = time.perf_counter()
    with run(launch, log) as processes:
        asyncio.run(wait_until_it_answers(launch, seed))
        note("start", "s", 1, time.perf_counter() - begun_s)
        time.sleep(SETTLE_S)
        for count in counts:
            asyncio.run(send_burst(launch, min(count, 8), 4, seed + 10 * count + 1))  # to warm up
            first, _, one = (
                asyncio.run(send_burst(launch, count, 1, seed + 10 * count + number))
                for number in (2, 4, 5)
            )
            whole = asyncio.run(send_burst(launch, count, ANSWER_TOKENS, seed + 10 * count + 3))
            step_s = (whole.length_s - one.length_s) / (ANSWER_TOKENS - 1)
            note("first prefill", "tok/s", count, count * PROMPT_TOKENS / first.length_s)
            note("prefill", "tok/s", count, count * PROMPT_TOKENS / one.length_s)
            note("decode step", "ms", count, 1e3 * step_s)
            note("output", "tok/s", count, count * ANSWER_TOKENS / whole.length_s)
            note("last first token", "ms", count, 1e3 * max(whole.first_s))
            note("gap p99", "ms", count, 1e3 * sorted(whole.gaps_s)[int(0.99 * len(whole.gaps_s))])
        note("memory", "GB", max(counts), measure_memory_bytes(processes) / 1e9)


def measure_rounds(options: argparse.Namespace) -> Samples:
    """All servers in turn, so often."""
    samples: Samples = defaultdict(list)
    for number in range(options.rounds):
        for name in ("hearth", *options.only):
            launch = SERVERS[name](options.peers, max(options.counts), options.level)
            log = options.peers / f"{name}.log"
            measure(launch, options.counts, 1000 * number, log, samples)
            print(f"round {number + 1} of {options.rounds}: {name}", flush=True)
    return samples


def to_figures(samples: Samples, level: str | None, form: str = "") -> list[Figure]:
    """A figure for each kind of sample; `form` and `level` say how it was not a whole server of all
    that this CPU has.
    """
    words = [f"{CHECKPOINT} bf16", f"{NUM_THREADS}t", *filter(None, (form, level))]
    return [
        summarise(", ".join(words), provider, metric, unit, x, values)
        for (provider, metric, unit, x), values in samples.items()
    ]


def create_parser(
    name: str, description: str | None, peers: Sequence[str]
) -> argparse.ArgumentParser:
    """What is measured, how often, beside which of `peers`."""
    parser = argparse.ArgumentParser(
        prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers", type=Path, required=True, help="the folder that `cpu_peers` has filled"
    )
    parser.add_argument("--only", nargs="*", default=peers, choices=peers)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 8, 32], help="of sequences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--level", choices=ONEDNN_LEVELS, help="as on a CPU that has no more instructions"
    )
    parser.add_argument("--dry", action="store_true", help="append nothing")
    return parser


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for; ends the process where the peers lack."""
    options = parser.parse_args()
    options.peers = options.peers.absolute()
    if not (options.peers / CHECKPOINT).is_dir():
        parser.error(f"run `python -m benchmarks.engine.cpu_peers {options.peers}` first")
    level: str | None = options.level
    if "llama.cpp" in options.only and not find_llama(options.peers, level).exists():
        words = "" if level is None else f" --level {level}"
        parser.error(f"run `python -m benchmarks.engine.cpu_peers {options.peers}{words}` first")
    return options


def report(figures: Sequence[Figure], *, is_dry: bool) -> None:
    """Prints medians and ratios, and appends the rows unless `is_dry`."""
    figures = [*figures, *compute_ratios(figures, "hearth")]
    print_figures(figures)
    if not is_dry:
        print(append_figures(RESULTS, figures, describe_circumstances(PACKAGES)))


def main() -> None:
    """Runs the rounds."""
    options = parse_options(create_parser("bench_cpu_peers", __doc__, [*SERVERS][1:]))
    report(to_figures(measure_rounds(options), options.level), is_dry=options.dry)


if __name__ == "__main__":
    main()
