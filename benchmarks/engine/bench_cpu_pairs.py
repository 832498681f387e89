"""Hearth and one peer as servers that run at once, asked in turn: for machines whose speed wanders.

    python -m benchmarks.engine.cpu_peers /tmp/cpu-peers                  # installs them
    python -m benchmarks.engine.bench_cpu_pairs --peers /tmp/cpu-peers --only llama.cpp

What is sent is that of `bench_cpu_peers`. A pair is the same burst at one server and at once at the
other, which one first alternates; every pair has a ratio of its own, and the rows that count are
medians of those. A server that was not asked meanwhile is asked for as much once before it counts:
the first burst after others took llama.cpp three times as long. All keep their memory, and neither
starts nor memory are measured. Nothing else should run. Appends to `results/cpu_peers.csv`.
"""

import asyncio
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import product

from benchmarks.engine.bench_cpu_peers import (
    RESULTS,
    Samples,
    create_parser,
    parse_options,
    send_burst,
    to_figures,
    wait_until_it_answers,
)
from benchmarks.engine.cpu_servers import SERVERS, Launch, run
from benchmarks.engine.offline_bursts import ANSWER_TOKENS, PROMPT_TOKENS, SETTLE_S
from benchmarks.harness import append_figures, describe_circumstances, print_figures

OURS = "hearth"
WARM_UP_TOKENS = 4


def measure_burst(launch: Launch, count: int, seed: int) -> dict[tuple[str, str], float]:
    """What one server makes of one burst, by metric and unit."""
    _, one, whole = (
        asyncio.run(send_burst(launch, count, num_tokens, 3 * seed + place))
        for place, num_tokens in enumerate((1, 1, ANSWER_TOKENS))
    )
    step_s = (whole.length_s - one.length_s) / (ANSWER_TOKENS - 1)
    return {
        ("prefill", "tok/s"): count * PROMPT_TOKENS / one.length_s,
        ("decode step", "ms"): 1e3 * step_s,
        ("output", "tok/s"): count * ANSWER_TOKENS / whole.length_s,
    }


def measure_pair(launches: list[Launch], count: int, seed: int, samples: Samples) -> None:
    """The same burst at both, the first of `launches` first."""
    seen = {launch.provider: measure_burst(launch, count, seed) for launch in launches}
    (theirs,) = seen.keys() - {OURS}
    for (metric, unit), ours in seen[OURS].items():
        peer = seen[theirs][metric, unit]
        samples[OURS, metric, unit, count].append(ours)
        samples[theirs, metric, unit, count].append(peer)
        samples[f"{OURS} / {theirs}", metric, "ratio", count].append(ours / peer)
        print(f"{count} at once, {metric}: {ours:.4g} and {peer:.4g} {unit}", flush=True)


def main() -> None:
    """Starts both, and sends the pairs."""
    parser = create_parser("bench_cpu_pairs", __doc__, [*SERVERS][1:])
    options = parse_options(parser)
    if len(options.only) != 1:
        parser.error("name one peer: --only llama.cpp")
    samples: Samples = defaultdict(list)
    with ExitStack() as stack:
        launches = list[Launch]()
        for name in (OURS, *options.only):
            launch = SERVERS[name](options.peers, max(options.counts), options.level)
            stack.enter_context(run(launch, options.peers / f"{name}.log"))
            asyncio.run(wait_until_it_answers(launch, 0))
            launches.append(launch)
        time.sleep(SETTLE_S)
        for count, launch in product(options.counts, launches):
            asyncio.run(send_burst(launch, count, WARM_UP_TOKENS, 1_000_000 + count))
        for number in range(options.rounds):
            for count in options.counts:
                measure_pair(launches, count, 100 * number + count, samples)
            launches.reverse()
    figures = to_figures(samples, options.level, "in pairs")
    print_figures(figures)
    if not options.dry:
        print(append_figures(RESULTS, figures, describe_circumstances(("torch", "transformers"))))


if __name__ == "__main__":
    main()
