"""Whether the first requests after a start are slower than later ones, over a whole server.

    python -m benchmarks.engine.bench_first_requests --folder /tmp/first            # the demo model
    python -m benchmarks.engine.bench_first_requests --folder /tmp/first --shapes qwen3-0.6b

A gateway and a node are started afresh, as `hearth dev` sets them up; once the gateway says that it
is ready requests follow one another, of equal lengths, whose prompts no server has seen. `first` is
the first after a start, `second` the next one; `later` are the last three of ten. One start before
all others counts for nothing: it leaves a packed copy of the weights, and files in memory.
Nothing else should run. Rows go to `results/engine_cpu.csv` with `--record`.
Read next: `cpu_servers`.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import aiohttp

from benchmarks.engine.bench_cpu_peers import PATIENCE_S, PROMPT_TOKENS, Burst, send_burst
from benchmarks.engine.cpu_peers import CHECKPOINT, VOCABULARY_SIZE, write_checkpoint
from benchmarks.engine.cpu_servers import (
    NUM_THREADS,
    Launch,
    launch_hearth,
    measure_work_s,
    run,
)
from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from gpu_pool.model_store import BUNDLED_PATH

DEMO = "tiny-chat"
VOCABULARIES = {DEMO: 2048, CHECKPOINT: VOCABULARY_SIZE}
NUM_REQUESTS, ANSWER_TOKENS = 10, 32
PLACES = {"first": slice(0, 1), "second": slice(1, 2), "later": slice(7, 10)}


async def wait_until_ready(launch: Launch) -> None:
    """Returns when the server says so. Raises: `TimeoutError`."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(launch.health_url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)


def measure_start(
    launch: Launch, log: Path, settle_s: float, seed: int, vocabulary_size: int
) -> dict[str, float]:
    """Milliseconds of one start: until ready, to first tokens, of steps, and of CPUs."""
    values: dict[str, float] = {}
    bursts: list[Burst] = []
    works_s: list[list[float]] = []
    begun_s = time.perf_counter()
    with run(launch, log) as processes:
        asyncio.run(wait_until_ready(launch))
        values["ready"] = 1e3 * (time.perf_counter() - begun_s)
        time.sleep(settle_s)
        for number in range(NUM_REQUESTS):
            before_s = [measure_work_s(process) for process in processes]
            send = send_burst(launch, 1, ANSWER_TOKENS, seed + number, vocabulary_size)
            bursts.append(asyncio.run(send))
            after_s = [measure_work_s(process) for process in processes]
            works_s.append([end - begin for begin, end in zip(before_s, after_s, strict=True)])
    for name, place in PLACES.items():
        some = bursts[place]
        for index, whose in enumerate(("node", "gateway")):
            work_s = statistics.median(one_s[index] for one_s in works_s[place])
            values[f"{name} CPU of {whose}"] = 1e3 * work_s
        values[f"{name} TTFT"] = 1e3 * statistics.median(burst.first_s[0] for burst in some)
        steps_s = [(burst.length_s - burst.first_s[0]) / (ANSWER_TOKENS - 1) for burst in some]
        values[f"{name} step"] = 1e3 * statistics.median(steps_s)
    return values


def measure(options: argparse.Namespace) -> list[Figure]:
    """All starts but the one before them."""
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = BUNDLED_PATH if options.shapes == DEMO else folder / CHECKPOINT
    if not checkpoint.exists():
        write_checkpoint(checkpoint)
    samples: dict[str, list[float]] = defaultdict(list)
    for number in range(options.starts + 1):
        launch = launch_hearth(folder, 8, None, checkpoint)
        vocabulary_size = VOCABULARIES[options.shapes]
        seed = 1000 * number
        values = measure_start(launch, folder / "log", options.settle, seed, vocabulary_size)
        print(number, {name: round(value, 2) for name, value in values.items()}, flush=True)
        if number:
            for name, value in values.items():
                samples[name].append(value)
    for kind in ("TTFT", "step", "CPU of node"):
        for name in ("first", "second"):
            pairs = zip(samples[f"{name} {kind}"], samples[f"later {kind}"], strict=True)
            samples[f"{name} / later {kind}"] = [one / later for one, later in pairs]
    sizes = f"{PROMPT_TOKENS}+{ANSWER_TOKENS}, {options.settle:g} s after ready"
    what = f"whole server, {options.shapes} bf16, {NUM_THREADS}t, {sizes}"
    return [
        summarise(what, "hearth", name, "ratio" if "/" in name else "ms", 1, values)
        for name, values in samples.items()
    ]


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = argparse.ArgumentParser(
        prog="bench_first_requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="for settings and weights")
    parser.add_argument("--shapes", choices=list(VOCABULARIES), default=DEMO)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--settle", type=float, default=0.0, help="seconds between ready and first")
    parser.add_argument("--record", action="store_true", help="append to results/engine_cpu.csv")
    options = parser.parse_args()
    figures = measure(options)
    print_figures(figures)
    if options.record:
        append_figures("engine_cpu.csv", figures, describe_circumstances(("torch",)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
