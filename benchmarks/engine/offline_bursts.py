"""What engines without a server are asked, and how their answers become samples.

Runs in every engine's own environment, so it needs nothing but Python. Lines of standard output
that begin with `SAMPLE` are samples as JSON. Read next: `bench_cpu_offline`, which reads them.
"""

import argparse
import json
import random
import time
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

PROMPT_TOKENS, ANSWER_TOKENS = 128, 64
SETTLE_S = 5
"""Between a load and the first burst, as whole servers have it."""
SAMPLE = "SAMPLE "
_LOWEST_ID = 300
"""Token ids below it are special or letters."""


class Burst(NamedTuple):
    """Prompts that come at once."""

    prompts: list[list[int]]
    num_tokens: int
    """Of each answer."""


def create_parser() -> argparse.ArgumentParser:
    """What every engine's process is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", required=True, help="of sequences")
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--level", default="auto")
    return parser


def ask(options: argparse.Namespace) -> Generator[Burst, float]:
    """Bursts of every number of sequences; wants to be sent the seconds until each was answered.

    Of three bursts for one token the last counts, then comes a whole one: a step's time is what
    that takes longer, for each further token.
    """
    time.sleep(SETTLE_S)
    rng = random.Random(options.seed)

    def draw(count: int, num_tokens: int) -> Burst:
        ids = range(_LOWEST_ID, options.vocabulary)
        return Burst([rng.choices(ids, k=PROMPT_TOKENS) for _ in range(count)], num_tokens)

    for count in options.counts:
        yield draw(min(count, 8), 4)  # to warm up
        yield draw(count, 1)
        yield draw(count, 1)
        prefill_s = yield draw(count, 1)
        whole_s = yield draw(count, ANSWER_TOKENS)
        tell("prefill", "tok/s", count, count * PROMPT_TOKENS / prefill_s)
        tell("decode step", "ms", count, 1e3 * (whole_s - prefill_s) / (ANSWER_TOKENS - 1))
        tell("output", "tok/s", count, count * ANSWER_TOKENS / whole_s)


def tell(metric: str, unit: str, x: int, value: float) -> None:
    """One sample."""
    print(SAMPLE + json.dumps([metric, unit, x, value]), flush=True)
