"""What a slow file tier costs whoever would have been quicker to compute: round by round in pairs.

A drive that the kernel throttles (as root) has a prefix, and the engine's real loop answers with
it. At once: all that is known is how fast the drive was before. Later: the next request, when that
has been learnt. Each answer stands between two that compute the same prompt under other salts, and
its ratio is to their mean; computing in such a place is the control, which owes its ratio to the
machine alone. Told are quantiles of the ratios, and the ratios of the times' quantiles, which no
pair decides. Never more than a tenth is promised. How far a drive in order falls behind computing
on its way says what less patience would cost: a fetch that is given up wrongly is computed whole.
Read next: `bench_tiers` (all tiers, and how an engine is made).
Run: `python -m benchmarks.engine.bench_slow_tiers [--rates 0.5 2 8 50] [--rounds 20] [--record]`.
"""

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

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
from gpu_pool.garbage import settle_garbage
from gpu_pool.kv.tiers.fetch_choice import Patience
from gpu_pool.kv.tiers.host_blocks import digest_layout
from gpu_pool.kv.tiers.namespace import TierNamespace
from gpu_pool.kv.tiers.settings import FileTierSettings, TierSettings
from gpu_pool.kv.tiers.tier_store import WantedBlock
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

AT_ONCE: Final = "throttled at once"
LATER: Final = "throttled for a while"
CONTROL: Final = "computed"
_ROOM_BYTES: Final = 16 << 30
_SHARES: Final = (20, 50, 80, 90)
_BLOCK_TOKENS: Final = 16


class Pairs:
    """Times of one kind, and the computing beside each. Units: seconds."""

    def __init__(self) -> None:
        """None."""
        self.times: list[float] = []
        self.beside: list[tuple[float, float]] = []

    def note(self, time_s: float, before_s: float, after_s: float) -> None:
        """One answer, and those before and after it."""
        self.times.append(time_s)
        self.beside.append((before_s, after_s))

    def describe(self, what: str, name: str, rate: float) -> list[Figure]:
        """Quantiles of the ratios, and ratios of the quantiles; of the worst, too."""
        ratios = [t / ((a + b) / 2) for t, (a, b) in zip(self.times, self.beside, strict=True)]
        all_beside = [each for pair in self.beside for each in pair]
        cuts = np.percentile(ratios, _SHARES)
        of_times = np.percentile(self.times, _SHARES) / np.percentile(all_beside, _SHARES)
        figures: list[Figure] = []
        x = round(rate * 1000)
        for metric, (low, middle, high, last) in (
            ("ratio to computing beside, by KB/s", cuts),
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
            staging_tokens=staging,
            native_kernels=args.dtype == "bfloat16",
        )
    )
    files = FileTierSettings(path=folder / "kv", max_bytes=_ROOM_BYTES, account_bytes=_ROOM_BYTES)
    engine = Engine(executor, TierSettings(file=files, staging_tokens=staging))
    prompt = [n * 7 % 8000 for n in range(args.prompt)]
    throttle, random = DriveThrottle(folder), Random(1)
    num_salts = 0

    def compute() -> float:
        nonlocal num_salts
        num_salts += 1
        return engine.compute(prompt, num_salts.to_bytes(32, "little"))

    def answer() -> float:
        engine.forget()
        time_s, num_cached = engine.answer(prompt, KNOWN)
        brought[name, rate].append(num_cached)
        return time_s

    for _ in range(2):  # kept, and all rates are known
        engine.answer(prompt, KNOWN)
        engine.forget()
    compute()
    settle_garbage()
    pairs: defaultdict[tuple[str, float], Pairs] = defaultdict(Pairs)
    brought: defaultdict[tuple[str, float], list[int]] = defaultdict(list)
    behind: list[float] = []
    before_s = compute()
    for _ in range(args.rounds):
        for rate in random.sample(args.rates, len(args.rates)):
            behind += read_all(engine, prompt, before_s)
            before_s = compute()
            throttle.set(int(rate * 1_000_000))
            for name, act in ((AT_ONCE, answer), (LATER, answer), (CONTROL, compute)):
                time_s = act()
                after_s = compute()
                pairs[name, rate].note(time_s, before_s, after_s)
                before_s = after_s
            throttle.set(0)
    engine.tiers.store.close()
    engine.executor.close()
    throttle.close()
    what = f"prefix of {args.prompt}, {args.shapes} {args.dtype}, slow drives"
    return [*describe(what, pairs, brought, args), *describe_order(what, behind)]


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
    computed = [time_s for rate in args.rates for time_s in pairs[CONTROL, rate].times]
    print(f"computing takes {np.median(computed):.3f} s")
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
