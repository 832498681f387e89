"""Hearth's engine beside those of llama.cpp and vLLM on this CPU: no servers, interleaved rounds.

    python -m benchmarks.engine.cpu_peers /tmp/cpu-peers                  # installs them
    python -m benchmarks.engine.bench_cpu_offline --peers /tmp/cpu-peers

The same shapes and lengths as `bench_cpu_peers`: prompts of 128 random tokens, answers of 64,
greedy. Hearth is its scheduler and executor, vLLM its `LLM` in one process, both with bursts of one
token (`prefill`) and of all; llama.cpp is its own `llama-batched-bench`, which draws no token and
computes no logits of prompts. With `--bits 4` all compute the same numbers of four bits, in groups
of 32, but for embedding and head. Every round starts each anew. Nothing else should run. Appends to
`results/cpu_peers.csv` as `offline`; the rows that count are the ratios.
"""

import argparse
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from benchmarks.engine.bench_cpu_peers import (
    Samples,
    create_parser,
    parse_options,
    report,
    to_figures,
)
from benchmarks.engine.cpu_peers import (
    CHECKPOINT,
    INT4_CHECKPOINT,
    VOCABULARY_SIZE,
    find_llama,
)
from benchmarks.engine.cpu_servers import KV_BYTES, NUM_THREADS, describe_vllm
from benchmarks.engine.offline_bursts import ANSWER_TOKENS, PROMPT_TOKENS, SAMPLE
from benchmarks.gateway.bench_processes import python

Sample: TypeAlias = tuple[str, str, int, float]
"""Metric, unit, number of sequences, value."""


def run_hearth(options: argparse.Namespace, seed: int) -> Iterator[Sample]:
    """The engine core in a process of its own."""
    words = [*_describe_bursts(options, seed), "--level", options.level or "auto"]
    yield from _read_samples(python("benchmarks.engine.offline_hearth", *words), {})


def run_vllm(options: argparse.Namespace, seed: int) -> Iterator[Sample]:
    """`LLM` in its own environment, scheduler and model in one process."""
    program = [str(options.peers / "vllm/bin/python"), "-m", "benchmarks.engine.offline_vllm"]
    environment = describe_vllm(options.peers, options.level)
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    yield from _read_samples([*program, *_describe_bursts(options, seed)], environment)


def run_llama(options: argparse.Namespace, seed: int) -> Iterator[Sample]:
    """Its own benchmark; every number of sequences twice, of which the second counts."""
    del seed  # which tokens it computes is its own choice
    program = find_llama(options.peers, options.level, "llama-batched-bench")
    twice = [count for count in options.counts for _ in range(2)]
    words = {
        "-m": options.peers / f"{_name_checkpoint(options)}.gguf",
        "-c": max(options.counts) * (PROMPT_TOKENS + ANSWER_TOKENS),
        "-t": NUM_THREADS,
        "-tb": NUM_THREADS,
        "-npp": PROMPT_TOKENS,
        "-ntg": ANSWER_TOKENS,
        "-npl": ",".join(map(str, twice)),
        "--output-format": "jsonl",
    }
    command = [str(program), *(str(word) for pair in words.items() for word in pair)]
    found = {row["pl"]: row for row in _read_rows(_run(command, {}))}
    for count in options.counts:
        row = found[count]
        yield "prefill", "tok/s", count, count * PROMPT_TOKENS / row["t_pp"]
        yield "decode step", "ms", count, 1e3 * row["t_tg"] / ANSWER_TOKENS
        yield "output", "tok/s", count, count * ANSWER_TOKENS / (row["t_pp"] + row["t_tg"])


ENGINES: Mapping[str, Callable[[argparse.Namespace, int], Iterator[Sample]]] = {
    "hearth": run_hearth,
    "llama.cpp": run_llama,
    "vLLM": run_vllm,
}


def _name_checkpoint(options: argparse.Namespace) -> str:
    return INT4_CHECKPOINT if options.bits == 4 else CHECKPOINT


def _describe_bursts(options: argparse.Namespace, seed: int) -> list[str]:
    """What an engine's process is told, as `offline_bursts` reads it."""
    words = {
        "--vocabulary": VOCABULARY_SIZE,
        "--threads": NUM_THREADS,
        "--kv-bytes": KV_BYTES,
        "--seed": seed,
    }
    flat = [str(word) for pair in words.items() for word in pair]
    return [
        str(options.peers / _name_checkpoint(options)),
        *flat,
        "--counts",
        *map(str, options.counts),
    ]


def _read_samples(command: list[str], environment: Mapping[str, str]) -> Iterator[Sample]:
    for line in _run(command, environment):
        if line.startswith(SAMPLE):
            metric, unit, x, value = json.loads(line.removeprefix(SAMPLE))
            yield metric, unit, x, value


def _read_rows(lines: list[str]) -> Iterator[dict[str, float]]:
    return (json.loads(line) for line in lines if line.startswith("{"))


def _run(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """What it prints. Raises: `RuntimeError` with its last words when it fails."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()


def main() -> None:
    """Runs the rounds."""
    parser = create_parser("bench_cpu_offline", __doc__, [*ENGINES][1:])
    parser.add_argument("--bits", type=int, choices=[16, 4], default=16, help="of layers' weights")
    options = parse_options(parser)
    samples: Samples = defaultdict(list)
    for number in range(options.rounds):
        for name in ("hearth", *options.only):
            for metric, unit, x, value in ENGINES[name](options, 1000 * number):
                samples[name, metric, unit, x].append(value)
            print(f"round {number + 1} of {options.rounds}: {name}", flush=True)
    form = "offline" if options.bits == 16 else "layers of four bits, offline"
    report(to_figures(samples, options.level, form), is_dry=options.dry)


if __name__ == "__main__":
    main()
