"""Time to the first token of a long prefix: from device, memory, files, a store, or computed.

The real engine loop (scheduler, runner, landings) over a random model, one request at a time; KV is
that of `--shapes`, and each provider has a place of its own. Files are read past the page cache. A
slow drive is a real one that the kernel throttles at the moment of the request (`--slow 100 2`, as
root; `--slow` alone leaves it out), so that the rate which was measured is wrong at first. The
store is Mooncake's with a real master, over TCP on loopback; who lends the memory is a process of
its own (`--without-store`: where the wheel is not installed). The figures that count are ratios to
computing, in one process; `computed again` is computing over computing, so what they owe to the
machine. A tier of which nothing has come for a twentieth of the computing is waited for no longer:
rounds of which less came than could are named, and whether that was refused or came too late. As in
a core no garbage is collected while a prefix comes: a whole collection takes as long as that.
Run: `python -m benchmarks.engine.bench_tiers [--prompt 4000] [--rounds 5] [--record]`.
"""

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.scheduler import Scheduler
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.speed_meter import SpeedMeter
from gpu_pool.garbage import settle_garbage
from gpu_pool.kv.tiers.assembly import Tiers, create_tiers
from gpu_pool.kv.tiers.mooncake_client import StoreClient
from gpu_pool.kv.tiers.settings import (
    FileTierSettings,
    HostTierSettings,
    StoreTierSettings,
    TierSettings,
)
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import Executor, SequenceId
from gpu_pool.prefill_cost import PrefillCost
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

_BLKIO = Path("/sys/fs/cgroup/blkio")
_ROOM_BYTES = 8 << 30
_SEGMENT_BYTES = 1 << 30
_START_S = 30.0
CACHE = Path(".cache")
COMPUTED = "computed"
AGAIN = "computed again"
KNOWN = bytes(32)
"""The salt under which the prefix is known."""
ACCOUNT = AccountId("a" * 32)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class DriveThrottle:
    """Lets this process read so many bytes in a second from the drive under a folder.

    Linux' first kind of control groups does it, where this process may make one (as root).
    """

    def __init__(self, folder: Path) -> None:
        """Moves this process into a group of its own. Raises: `OSError`."""
        device = folder.stat().st_dev
        self._device = f"{os.major(device)}:{os.minor(device)}"
        self._group = _BLKIO / f"hearth-bench-{os.getpid()}"
        self._group.mkdir()
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def set(self, bytes_per_s: int) -> None:
        """Bounds reads; 0 lets everything through."""
        limit = self._group / "blkio.throttle.read_bps_device"
        limit.write_text(f"{self._device} {bytes_per_s}")

    def close(self) -> None:
        """Back to where the process was, as far as that is known: to the root."""
        (_BLKIO / "cgroup.procs").write_text(str(os.getpid()))
        self._group.rmdir()


@dataclass(slots=True)
class Engine:
    """A core's loop without a transport, with tiers of its own."""

    executor: Executor
    settings: TierSettings
    speed: SpeedMeter = field(default_factory=SpeedMeter)
    read_cost: Callable[[SpeedMeter], PrefillCost] = attrgetter("prefill_cost")
    """What the tiers are told of computing."""
    read_s: Callable[[], float] = time.perf_counter
    """The clock by which work is timed."""
    news: threading.Event = field(default_factory=threading.Event)
    tiers: Tiers = field(init=False)
    scheduler: Scheduler = field(init=False)
    num_requests: int = 0
    worked_s: float = 0.0
    """Until the latest answer's first token, by that clock."""
    waited_s: float = 0.0
    """Of its time, that in which nothing was computed since something was to land."""

    def __post_init__(self) -> None:
        """Nothing computed."""
        self.tiers = create_tiers(
            self.settings,
            "benchmark",
            self.executor,
            lambda: self.read_cost(self.speed),
            time.monotonic,
            self.news.set,
        )
        carriers = Carriers((self.tiers.source,), (self.tiers.sink,), self.speed)
        settings = SchedulerSettings(max_batch_tokens=1024)
        self.scheduler = create_scheduler(
            settings, self.executor.info, lambda: 1, carriers=carriers
        )

    def answer(self, prompt: list[int], salt: bytes) -> tuple[float, int]:
        """Seconds to the first token, and tokens that needed no computing."""
        self.num_requests += 1
        start_s, work_start_s, self.waited_s = time.perf_counter(), self.read_s(), 0.0
        self.scheduler.add(
            AddSequence(
                sequence_id=SequenceId(self.num_requests),
                account_id=ACCOUNT,
                cache_salt=salt,
                token_ids=tuple(prompt),
                sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, seed=1),
                priority=0,
                deadline_ms=2**50,
                reject_if_busy=False,
            )
        )
        first_s, num_cached = 0.0, 0
        while self.scheduler.num_sequences:
            self.step()
            output = self.scheduler.take_output()
            num_cached = max(
                [num_cached, *(s.num_cached_tokens for s in (output.started if output else ()))]
            )
            if output is not None and output.tokens:
                first_s = time.perf_counter() - start_s
                self.worked_s = self.read_s() - work_start_s
        self.settle()
        return first_s, num_cached

    def learn(self, prompt: list[int]) -> None:
        """Fetches until nothing is refused any more: what has been slow is tried now and then."""
        num_refused = -1
        while num_refused != self.tiers.store.num_refused:
            num_refused = self.tiers.store.num_refused
            self.answer(prompt, KNOWN)
            self.forget()

    def compute(self, prompt: list[int], salt: bytes) -> float:
        """Seconds to the first token under a salt of which nothing is known."""
        self.forget()
        first_s, num_cached = self.answer(prompt, salt)
        assert num_cached == 0, "another salt finds nothing"
        return first_s

    def step(self) -> None:
        """As `EngineCore` does it: one step, or a wait for what lands."""
        if not self.scheduler.has_work:
            deadline_ms = self.scheduler.next_deadline_ms
            patience_s = (deadline_ms or 0) / 1000 - time.monotonic()
            began_s = time.monotonic()
            self.news.wait(max(0.0, patience_s))
            self.waited_s += time.monotonic() - began_s
            self.news.clear()
        plan = self.scheduler.schedule(read_node_ms())
        if plan is not None:
            began_s = self.read_s()
            self.executor.submit(plan)
            result = self.executor.collect()
            self.scheduler.note_step(self.read_s() - began_s)
            self.scheduler.update(result)

    def settle(self) -> None:
        """Waits until the tiers have kept what they are to keep."""
        while self.scheduler.books.passage.count_held(0):
            self.scheduler.schedule(read_node_ms())
            time.sleep(0.001)

    def forget(self) -> None:
        """The device loses all it has."""
        self.scheduler.forget_prefixes()


def load(args: argparse.Namespace, folder: Path) -> Executor:
    """The model once more, with memory for the prompt on either side."""
    return create_executor(
        WorkerSettings(
            model_dir=folder,
            num_blocks=args.prompt // 16 + 8,
            staging_tokens=args.prompt + 64,
            native_kernels=args.dtype == "bfloat16",
        )
    )


def create_engines(args: argparse.Namespace, folder: Path, master: str | None) -> dict[str, Engine]:
    """One for each kind of tier, with a directory and a model of its own."""
    tokens = args.prompt + 64
    host = TierSettings(host=HostTierSettings(max_bytes=_ROOM_BYTES), staging_tokens=tokens)
    engines = {"host": Engine(load(args, folder), host)}
    for name in ("file", *(f"file at {rate} MB/s" for rate in args.slow)):
        files = FileTierSettings(path=folder / name.replace("/", " a "), max_bytes=_ROOM_BYTES)
        settings = TierSettings(file=files, staging_tokens=tokens)
        engines[name] = Engine(load(args, folder), settings)
    if master is not None:
        store = StoreTierSettings(master=master, max_bytes=_ROOM_BYTES)
        engines["store"] = Engine(
            load(args, folder), TierSettings(store=store, staging_tokens=tokens)
        )
        while engines["store"].tiers.store.describe()[0].is_off:
            time.sleep(0.1)
    return engines


@contextmanager
def open_store(folder: Path) -> Generator[str]:
    """A master of this run's own and somebody who lends memory; gives the master's address."""
    port, admin_port = find_port(), find_port()
    binary = Path(sys.executable).with_name("mooncake_master")
    addresses = ("--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1")
    ports = (f"--rpc_port={port}", f"--metrics_port={admin_port}", f"--log_dir={folder}")
    process = subprocess.Popen(
        [binary, *addresses, *ports], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    master = f"127.0.0.1:{port}"
    settings = StoreTierSettings(master=master, max_bytes=1, segment_bytes=_SEGMENT_BYTES)
    lender = StoreClient(settings, lambda: None)
    lender.start(lambda: None)
    try:
        deadline_s = time.monotonic() + _START_S
        while lender.is_away:
            if time.monotonic() > deadline_s:
                raise TimeoutError("Mooncake Store does not start")
            time.sleep(0.1)
        yield master
    finally:
        lender.close()
        process.kill()
        process.wait()


def find_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(args: argparse.Namespace, folder: Path, master: str | None) -> list[Figure]:
    """The figures of all providers, round by round: each beside computing the same at once."""
    samples: defaultdict[str, list[float]] = defaultdict(list)
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    nums_cached: defaultdict[str, set[int]] = defaultdict(set)
    prompt = [n * 7 % 8000 for n in range(args.prompt)]
    throttle = DriveThrottle(folder) if args.slow else None
    engines = create_engines(args, folder, master)
    for engine in engines.values():  # computed once, kept, and all rates are known
        engine.answer(prompt, KNOWN)
        engine.forget()
        engine.answer(prompt, KNOWN)
    settle_garbage()
    for number in range(1, args.rounds + 1):
        for name, engine in engines.items():
            engine.forget()
            rate = name.removeprefix("file at ").removesuffix(" MB/s")
            if throttle is not None and rate.isdecimal():
                engine.learn(prompt)
                throttle.set(int(rate) * 1_000_000)
            num_refused = engine.tiers.store.num_refused
            outcomes = {name: engine.answer(prompt, KNOWN)}
            if throttle is not None:
                throttle.set(0)
            if outcomes[name][1] < max(nums_cached[name], default=0):
                num_refused = engine.tiers.store.num_refused - num_refused
                print(f"{name}, round {number}: {outcomes[name]}, {num_refused} blocks refused")
            if name == "host":
                outcomes["device"] = engine.answer(prompt, KNOWN)
            computed_s, again_s = (
                engine.compute(prompt, bytes([half]) + number.to_bytes(31, "little"))
                for half in (1, 2)
            )
            samples[COMPUTED].append(computed_s * 1e3)
            ratios[AGAIN].append(again_s / computed_s)
            for provider, (first_s, num_cached) in outcomes.items():
                samples[provider].append(first_s * 1e3)
                ratios[provider].append(first_s / computed_s)
                nums_cached[provider].add(num_cached)
    for name, engine in engines.items():
        for tier in engine.tiers.store.describe():
            print(f"{name}: {tier}, refused {engine.tiers.store.num_refused}")
        engine.tiers.store.close()
        engine.executor.close()
    if throttle is not None:
        throttle.close()
    print({name: f"{sorted(nums)} of {args.prompt} tokens" for name, nums in nums_cached.items()})
    what, metric = f"prefix of {args.prompt}, {args.shapes} {args.dtype}", "time to first token"
    return [
        *(summarise(what, name, metric, "ms", args.prompt, s) for name, s in samples.items()),
        *(
            summarise(what, f"{name} / {COMPUTED}", metric, "ratio", args.prompt, pairs)
            for name, pairs in ratios.items()
        ),
    ]


def create_parser(description: str | None) -> argparse.ArgumentParser:
    """What all benchmarks of tiers can be asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of the prefix")
    parser.add_argument("--shapes", choices=SHAPES, default="tiny")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--record", action="store_true", help="append to results/kv_tiers.csv")
    return parser


def main() -> None:
    """Prints the figures; `--record` appends them."""
    parser = create_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow", type=int, nargs="*", default=[100, 2], help="MB/s of the drive")
    parser.add_argument("--without-store", action="store_true", help="no Mooncake Store")
    args = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=CACHE) as name:  # on a drive, which /tmp need not be
        folder = Path(name)
        write_random_llama(folder, SHAPES[args.shapes], DTYPES[args.dtype])
        with nullcontext() if args.without_store else open_store(folder) as master:
            figures = measure(args, folder, master)
    print_figures(figures)
    if args.record:
        packages = ["torch", "cryptography", "mooncake-transfer-engine-non-cuda"]
        append_figures("kv_tiers.csv", figures, describe_circumstances(packages))


if __name__ == "__main__":
    main()
