"""What a slow file tier costs whoever would have been quicker to compute: round by round in pairs.

A drive that the kernel throttles (as root) has a prefix, and the engine's real loop answers with
it. At once: all that is known is how fast the drive was before. Later: the next request, when that
has been learnt. Each answer stands between two that compute the same prompt under other salts, and
its ratio is to their mean; computing in such a place is the control, which owes its ratio to the
machine alone. Told are quantiles of the ratios, and the ratios of the times' quantiles, which no
pair decides. Never more than a tenth is promised. As a machine that others share is slower now and
then, all is told by work, too: computing is timed by the processor, on one thread, for the rule as
well, and to that comes what the request has waited by the clock. So others cost neither way.
`--by-the-token` takes all tokens of a prompt for alike, as the rule did once: a control that passes
the tenth. How far a drive in order falls behind computing on its way says what less patience would
cost: a fetch that is given up wrongly is computed whole.
Read next: `bench_tiers` (all tiers, and how an engine is made).
Run: `python -m benchmarks.engine.bench_slow_tiers [--rates 0.5 2 8 50] [--rounds 20] [--record]`.
"""

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np

from benchmarks.engine.bench_tiers import (
    ACCOUNT,
    CACHE,
    DTYPES,
    KNOWN,
    DriveThrottle,
    Engine,
    create_parser,
)
from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.harness import Figure, append_figures, describe_circumstances, print_figures
from gpu_pool.engine.speed_meter import SpeedMeter
from gpu_pool.garbage import settle_garbage
from gpu_pool.kv.tiers.fetch_choice import Patience
from gpu_pool.kv.tiers.host_blocks import digest_layout
from gpu_pool.kv.tiers.namespace import TierNamespace
from gpu_pool.kv.tiers.settings import FileTierSettings, TierSettings
from gpu_pool.kv.tiers.tier_store import WantedBlock
from gpu_pool.prefill_cost import PrefillCost
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

AT_ONCE: Final = "throttled at once"
LATER: Final = "throttled for a while"
CONTROL: Final = "computed"
_ROOM_BYTES: Final = 16 << 30
_SHARES: Final = (20, 50, 80, 90)
_BLOCK_TOKENS: Final = 16


BY_CLOCK: Final = "ratio to computing beside, by KB/s"
BY_WORK: Final = "ratio of work and waits to computing's beside, by KB/s"


class Took(NamedTuple):
    """What an answer took. Units: seconds."""

    clock_s: float
    """Until its first token."""
    work_s: float
    """The processor's part of that, and waits for what was to land."""


class Pairs:
    """Answers of one kind, and the computing beside each."""

    def __init__(self) -> None:
        """None."""
        self.answers: list[Took] = []
        self.beside: list[tuple[Took, Took]] = []

    def note(self, took: Took, before: Took, after: Took) -> None:
        """One answer, and those before and after it."""
        self.answers.append(took)
        self.beside.append((before, after))

    def describe(self, what: str, name: str, rate: float) -> list[Figure]:
        """Quantiles of the ratios, and ratios of the quantiles; of the worst, too."""
        took = np.array(self.answers)
        beside = np.array(self.beside)
        of_clock, of_work = np.percentile(took / beside.mean(axis=1), _SHARES, axis=0).T
        clocks, clocks_beside = took[:, 0], beside[:, :, 0]
        of_times = np.percentile(clocks, _SHARES) / np.percentile(clocks_beside, _SHARES)
        figures: list[Figure] = []
        x = round(rate * 1000)
        for metric, (low, middle, high, last) in (
            (BY_WORK, of_work),
            (BY_CLOCK, of_clock),
            ("ratio of quantiles to computing's, by KB/s", of_times),
        ):
            figures.append(Figure(what, name, metric, "ratio", x, low, middle, high))
            figures.append(Figure(what, name, f"{metric}, p90", "ratio", x, last, last, last))
        return figures


def measure(args: argparse.Namespace, folder: Path) -> list[Figure]:
    """All rates in turn, in another order each round."""
    staging = 4 * args.prompt  # so that a step may complete the whole prompt
    executor = create_executor(
        WorkerSettings(
            model_dir=folder,
            num_blocks=args.prompt // 16 + 8,
            num_threads=1,
            staging_tokens=staging,
            native_kernels=args.dtype == "bfloat16",
        )
    )
    files = FileTierSettings(path=folder / "kv", max_bytes=_ROOM_BYTES, account_bytes=_ROOM_BYTES)
    tiers = TierSettings(file=files, staging_tokens=staging)
    read_cost = take_for_alike if args.by_the_token else attrgetter("prefill_cost")
    engine = Engine(executor, tiers, read_cost=read_cost, read_s=time.thread_time)
    prompt = [n * 7 % 8000 for n in range(args.prompt)]
    throttle, random = DriveThrottle(folder), Random(1)
    num_salts = 0

    def compute() -> Took:
        nonlocal num_salts
        num_salts += 1
        clock_s = engine.compute(prompt, num_salts.to_bytes(32, "little"))
        return Took(clock_s, engine.worked_s + engine.waited_s)

    def answer() -> Took:
        engine.forget()
        clock_s, num_cached = engine.answer(prompt, KNOWN)
        brought[name, rate].append(num_cached)
        return Took(clock_s, engine.worked_s + engine.waited_s)

    for _ in range(2):  # kept, and all rates are known
        engine.answer(prompt, KNOWN)
        engine.forget()
    compute()
    settle_garbage()
    pairs: defaultdict[tuple[str, float], Pairs] = defaultdict(Pairs)
    brought: defaultdict[tuple[str, float], list[int]] = defaultdict(list)
    behind: list[float] = []
    before = compute()
    for _ in range(args.rounds):
        for rate in random.sample(args.rates, len(args.rates)):
            behind += read_all(engine, prompt, before.work_s)
            before = compute()
            throttle.set(int(rate * 1_000_000))
            for name, act in ((AT_ONCE, answer), (LATER, answer), (CONTROL, compute)):
                took = act()
                after = compute()
                pairs[name, rate].note(took, before, after)
                before = after
            throttle.set(0)
    engine.tiers.store.close()
    engine.executor.close()
    throttle.close()
    kind = ", by the token" if args.by_the_token else ""
    what = f"prefix of {args.prompt}, {args.shapes} {args.dtype}, slow drives{kind}"
    return [*describe(what, pairs, brought, args), *describe_order(what, behind)]


def take_for_alike(speed: SpeedMeter) -> PrefillCost:
    """What computing takes where each token is thought to take what any other does."""
    return PrefillCost(1 / speed.prefill_per_s if speed.prefill_per_s else 0.0)


def read_all(engine: Engine, prompt: list[int], computing_s: float) -> list[float]:
    """Has the tier read the prefix past all choice, so that its rate is known as it is now: twice.
    By how much either fell behind computing at most, as a part of that.
    """
    patience = Patience(engine.speed.prefill_cost, 0, len(prompt))
    behind: list[float] = []
    kv = engine.scheduler._kv
    prefix = kv.name_prefix(kv.create_table(ACCOUNT, KNOWN), prompt)
    space = TierNamespace(prefix.account_id, prefix.root_key, digest_layout(engine.executor.info))
    num_bytes = engine.executor.info.kv_groups[0].block_bytes
    rows = [[WantedBlock(space.name_block(0, key), num_bytes)] for key in prefix.keys]
    targets = [[memoryview(bytearray(num_bytes))] for _ in rows]
    for _ in range(2):
        is_over, began_s = threading.Event(), time.monotonic()
        most: list[float] = []

        def note(num_landed: int, began_s: float = began_s, most: list[float] = most) -> bool:
            spared_s = patience.bound_wait(num_landed * _BLOCK_TOKENS) - patience.slack_s
            most.append(time.monotonic() - began_s - spared_s)
            return False

        fetch = engine.tiers.store.fetch(space, rows, targets, note, is_over.set)
        is_over.wait()
        assert fetch.num_landed == len(rows), "a block is missing"
        behind.append(max(most) / computing_s)
    return behind


def describe(
    what: str,
    pairs: dict[tuple[str, float], Pairs],
    brought: dict[tuple[str, float], list[int]],
    args: argparse.Namespace,
) -> list[Figure]:
    """The rows, and what the drive has brought."""
    figures: list[Figure] = []
    for name in (AT_ONCE, LATER, CONTROL):
        for rate in args.rates:
            figures += pairs[name, rate].describe(what, f"{name}, {rate:g} MB/s", rate)
            print(f"{name}, {rate:g} MB/s: {summarise_tokens(brought[name, rate])}")
    computed = [took for rate in args.rates for took in pairs[CONTROL, rate].answers]
    clock_s, work_s = np.median(computed, axis=0)
    print(f"computing takes {clock_s:.3f} s, {work_s:.3f} s of it on the processor")
    return figures


def describe_order(what: str, behind: Sequence[float]) -> list[Figure]:
    """How far a drive in order falls behind; a twentieth is waited for."""
    low, middle, high, last = np.percentile(behind, _SHARES)
    metric, most = "behind computing at most", max(behind)
    print(f"a drive in order falls behind by {most:.3f} of computing at most")
    return [
        Figure(what, "in order", metric, "ratio", len(behind), low, middle, high),
        Figure(what, "in order", f"{metric}, p90", "ratio", len(behind), last, last, last),
        Figure(what, "in order", f"{metric}, last", "ratio", len(behind), most, most, most),
    ]


def summarise_tokens(counts: Sequence[int]) -> str:
    """How many tokens came, in words."""
    if not counts:
        return "nothing is fetched"
    return f"{min(counts)} to {max(counts)} tokens fetched, half the time {int(np.median(counts))}"


def main() -> None:
    """Prints the figures; `--record` appends them."""
    parser = create_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 2, 8, 50], help="MB/s")
    parser.add_argument("--by-the-token", action="store_true", help="the rule of before")
    args = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=CACHE) as name:  # on a drive, which /tmp need not be
        folder = Path(name)
        write_random_llama(folder, SHAPES[args.shapes], DTYPES[args.dtype])
        figures = measure(args, folder)
    print_figures(figures)
    if args.record:
        circumstances = describe_circumstances(["torch", "cryptography"])
        append_figures("kv_tiers.csv", figures, circumstances)


if __name__ == "__main__":
    main()
