"""What masks of constrained answers cost everybody's steps: computed in them, and beside them.

    python -m benchmarks.engine.bench_masks [--step-ms 8] [--record]

A scheduler with real matchers over a vocabulary of 151,000 drawn tokens; the executor sleeps as
long as a step would take and draws what the masks allow. "in the step" is a core without threads
for masks, as it was; "beside it" is what nodes do. A dear answer follows a pattern of 26
alternatives, which takes milliseconds for a token; a usual one is an object of strings and numbers.
"""

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase
from typing import Any, Final

from rich.console import Console
from rich.progress import track

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
from gpu_pool.cpu_share import count_usable_cpus, share_mask_threads
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.matcher_maker import InlineMaker
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.model_store import BUNDLED_PATH
from gpu_pool.plan import ForwardPlan, ForwardResult, SampledTokens, SequenceId
from gpu_pool.structured.matcher import MatcherFactory

VOCAB_SIZE: Final = 151_000
WARM_S: Final = 1.0
EOS: Final = 0
USUAL: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "street": {"type": "string"},
        "numbers": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "street", "numbers"],
    "additionalProperties": False,
}
ALTERNATIVES: Final = "|".join(f".{{{n}}}{letter}" for n, letter in enumerate(ascii_lowercase))
DEAR: Final = {"type": "string", "pattern": f"^({ALTERNATIVES})*$"}
SHARES: Final[dict[str, dict[str, int]]] = {
    "4 plain": {"plain": 4},
    "16 usual": {"usual": 16},
    "4 plain, 16 usual": {"plain": 4, "usual": 16},
    "60 usual": {"usual": 60},
    "4 plain, 16 dear": {"plain": 4, "dear": 16},
    "4 plain, 8 usual, 16 dear": {"plain": 4, "usual": 8, "dear": 16},
}
"""Answers at a time; each kind is an account's."""


def create_factory(random: Random) -> MatcherFactory:
    """Matchers over the demo model's vocabulary with words drawn beside it."""
    tokenizer = json.loads((BUNDLED_PATH / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    pieces = [a + b for a in "bcdfghklmnprstvw" for b in "aeiou"]
    pieces += ["ing", "er", "tion", "est", "q", "x", *'0123456789_-(){}":,']
    while len(vocabulary) < VOCAB_SIZE:
        space = "Ġ" if random.random() < 0.5 else ""
        word = space + "".join(random.choices(pieces, k=random.randint(1, 4)))
        vocabulary.setdefault(word, len(vocabulary))
    return MatcherFactory(json.dumps(tokenizer), VOCAB_SIZE, [EOS])


def draw(mask: bytes, random: Random) -> int:
    """A token that `mask` allows."""
    for _ in range(500):
        token_id = random.randrange(VOCAB_SIZE)
        if mask[token_id // 8] >> token_id % 8 & 1:
            return token_id
    first = next(index for index, bits in enumerate(mask) if bits)
    return first * 8 + (mask[first] & -mask[first]).bit_length() - 1


@dataclass(slots=True)
class Seen:
    """What a run came to."""

    steps_ms: list[float] = field(default_factory=list[float])
    num_tokens: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0


class Run:
    """A core whose answers are followed by others of their kind."""

    def __init__(self, factory: MatcherFactory, num_threads: int, step_s: float) -> None:
        """Nobody has asked."""
        self._random = Random(3)
        self._step_s = step_s
        self._ids: Iterator[int] = itertools.count(1)
        self._kinds: dict[int, str] = {}
        info = create_double_info(
            block_size=16, num_blocks=1 << 14, context_window=4096, vocab_size=VOCAB_SIZE
        )
        maker = InlineMaker(factory.create, num_threads)
        self._scheduler = create_scheduler(SchedulerSettings(), info, lambda: 1, maker)

    def add(self, kind: str) -> None:
        """One more request."""
        schema: dict[str, Any] | None = {"usual": USUAL, "dear": DEAR}.get(kind)
        grammar = None if schema is None else json.dumps({"grammars": [{"json_schema": schema}]})
        sequence_id = next(self._ids)
        self._kinds[sequence_id] = kind
        self._scheduler.add(
            AddSequence(
                sequence_id=SequenceId(sequence_id),
                account_id=AccountId(kind[0] * 32),
                cache_salt=kind.encode() * 8,
                token_ids=tuple(range(sequence_id % 1000, sequence_id % 1000 + 20)),
                sampling=SamplingParams(max_tokens=200, seed=1),
                priority=0,
                deadline_ms=2**50,
                reject_if_busy=False,
                grammar=grammar,
            )
        )

    def measure(self, seconds: float) -> Seen:
        """Steps for so long."""
        self._step_until(time.monotonic() + WARM_S, Seen())
        began_s = time.monotonic()
        seen = Seen()
        self._step_until(began_s + seconds, seen)
        seen.seconds = time.monotonic() - began_s
        return seen

    def _step_until(self, end_s: float, seen: Seen) -> None:
        """Counts each step's time, without what drawing takes."""
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            plan = self._scheduler.schedule(0)
            if plan is not None:
                time.sleep(self._step_s)
                computed_s = time.monotonic()
                result = self._answer(plan, seen)
                drawing_s = time.monotonic() - computed_s
                self._scheduler.note_step(self._step_s)
                self._scheduler.update(result)
                seen.steps_ms.append((time.monotonic() - began_s - drawing_s) * 1e3)
            output = self._scheduler.take_output()
            for finished in () if output is None else output.finished:
                self.add(self._kinds.pop(finished.sequence_id))

    def _answer(self, plan: ForwardPlan, seen: Seen) -> ForwardResult:
        """A token for everyone who samples."""
        sampled: list[SampledTokens] = []
        for work in plan.scheduled:
            if work.samples:
                mask = work.allowed_tokens
                token_id = 5 if mask is None else draw(mask, self._random)
                sampled.append(SampledTokens(work.sequence_id, (token_id,)))
                seen.num_tokens[self._kinds[work.sequence_id]] += 1
        return ForwardResult(plan.step, tuple(sampled))


def measure_share(
    name: str, factory: MatcherFactory, way: str, num_threads: int, args: argparse.Namespace
) -> list[Figure]:
    """Step times and tokens a second of all kinds that ask together."""
    run = Run(factory, num_threads, args.step_ms / 1e3)
    for kind, count in SHARES[name].items():
        for _ in range(count):
            run.add(kind)
    seen = run.measure(args.seconds)
    figures = [summarise(name, way, "step", "ms", args.step_ms, seen.steps_ms)]
    for kind, num_tokens in seen.num_tokens.items():
        rate = num_tokens / seen.seconds
        figures.append(summarise(name, way, f"{kind} tokens", "per s", args.step_ms, [rate]))
    return figures


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step-ms", type=int, default=8, help="what a step takes without masks")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--record", action="store_true", help="append to results/engine_cpu.csv")
    args = parser.parse_args()
    factory = create_factory(Random(1))
    ways = {"in the step": 0, "beside it": share_mask_threads(count_usable_cpus())}
    figures: list[Figure] = []
    runs = list(itertools.product(SHARES, ways.items()))
    for name, (way, num_threads) in track(runs, "runs", console=Console(stderr=True)):
        figures += measure_share(name, factory, way, num_threads, args)
    figures += compute_ratios(figures, "beside it")
    print_figures(figures)
    if args.record:
        append_figures("engine_cpu.csv", figures, describe_circumstances(["llguidance"]))


if __name__ == "__main__":
    main()
