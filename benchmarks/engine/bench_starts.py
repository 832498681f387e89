"""How long a server takes to its first answer, of models that nobody has prepared and of others.

    python -m benchmarks.engine.cpu_peers /tmp/cpu-peers                  # installs llama.cpp, too
    python -m benchmarks.engine.bench_starts --peers /tmp/cpu-peers

From the processes' start to the end of a first answer of eight tokens, Qwen3-0.6B's shapes in bf16,
files in the page cache. `first` is the start of a folder that a node is merely told of, which packs
the weights; `later` one of a model that `hearth models add` has prepared, or that was started
before (left out with `--level`); llama.cpp's is of GGUF. They take turns, each some seconds after
the one before, so that a virtual machine's host has its memory back. `work` is the time of CPUs
until then, in the processes and all below them. Nothing else should run. Appends to
`results/cpu_peers.csv`. Read next: `cpu_servers`.
"""

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.engine.bench_cpu_peers import (
    Samples,
    create_parser,
    parse_options,
    report,
    to_figures,
    wait_until_it_answers,
)
from benchmarks.engine.cpu_peers import CHECKPOINT
from benchmarks.engine.cpu_servers import Launch, launch_hearth, launch_llama, measure_work_s, run
from gpu_pool.weights.packed_file import COPY_FILE

NUM_SEQUENCES = 1
SETTLE_S = 7.0
"""Between two starts."""


def launch_first(folder: Path, level: str | None) -> Launch:
    """Ours, of a model without a packed copy."""
    (folder / CHECKPOINT / COPY_FILE).unlink(missing_ok=True)
    return launch_hearth(folder, NUM_SEQUENCES, level, is_prepared=False)


STARTS: Mapping[str, Callable[[Path, str | None], Launch]] = {
    "first": launch_first,
    "later": lambda folder, level: launch_hearth(folder, NUM_SEQUENCES, level),
    "llama.cpp": lambda folder, level: launch_llama(folder, NUM_SEQUENCES, level),
}


def measure(name: str, options: argparse.Namespace, number: int, samples: Samples) -> None:
    """One start."""
    launch = STARTS[name](options.peers, options.level)
    time.sleep(SETTLE_S)
    begun_s = time.perf_counter()
    with run(launch, options.peers / f"{launch.provider}.log") as processes:
        asyncio.run(wait_until_it_answers(launch, number))
        taken_s = time.perf_counter() - begun_s
        work_s = sum(map(measure_work_s, processes))
    provider = launch.provider if name == launch.provider else f"{launch.provider}, {name}"
    samples[provider, "start", "s", NUM_SEQUENCES].append(taken_s)
    samples[provider, "work", "s", NUM_SEQUENCES].append(work_s)
    print(f"round {number + 1}: {provider} {taken_s:.2f} s, {work_s:.2f} s of CPUs", flush=True)


def main() -> None:
    """Starts all kinds in turn, so often."""
    options = parse_options(create_parser("bench_starts", __doc__, ["llama.cpp"]))
    kinds = ["first", *options.only] if options.level else ["first", "later", *options.only]
    samples: Samples = defaultdict(list)
    for number in range(options.rounds):
        for name in kinds:
            measure(name, options, number, samples)
    report(to_figures(samples, options.level, "starts"), is_dry=options.dry)


if __name__ == "__main__":
    main()
