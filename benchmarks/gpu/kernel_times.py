"""Which kernels a load spends its time in, and how long the device waits between them.

python -m benchmarks.gpu.kernel_times --model qwen3-0.6b --sequences 1    # steps of one sequence
python -m benchmarks.gpu.kernel_times --model llama-3.1-8b --prompt 8192 --tokens 1   # a prompt

Not a section: a profiler slows what it watches. Without a GPU it only tries itself. Where packages
are missing: `export PYTHONPATH=$(python3 -m benchmarks.gpu.wheels)` first. Read next: `load`.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from benchmarks.gpu.load import Run, Streams, carry, create_settings, draw_requests
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.shapes import BLOCK_SIZE, QWEN_SMALL, SHAPES

_BATCH_TOKENS: Final = 16_384
_SHOWN: Final = 25
_NAME_LENGTH: Final = 60


def main() -> int:
    """Prints one line per kernel. The exit status."""
    asked = _parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    length = asked.prompt + asked.tokens + BLOCK_SIZE
    executor = create_random_executor(
        SHAPES[asked.model],
        device,
        context_window=length,
        num_blocks=asked.sequences * (length // BLOCK_SIZE + 2),
    )
    watched = profile(
        activities=[ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU]
    )
    lengths = [(asked.prompt, asked.tokens)] * asked.sequences

    def list_parts() -> Iterator[Streams]:
        for seed in range(asked.warm):
            yield Streams(draw_requests(executor, lengths, seed))
        watched.start()
        yield Streams(draw_requests(executor, lengths, asked.warm))
        watched.stop()

    settings = create_settings(asked.sequences, _BATCH_TOKENS, prefix_caching=False)
    run = carry(executor, list_parts(), settings)[-1]
    executor.close()
    if asked.trace is not None:
        watched.export_chrome_trace(str(asked.trace))
    _print_kernels(watched, run)
    return 0


def _parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=sorted(SHAPES), default=QWEN_SMALL)
    parser.add_argument("--sequences", type=int, default=1, help="at once (1)")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of each prompt (1000)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer (64)")
    parser.add_argument("--warm", type=int, default=2, help="equal loads that go before (2)")
    parser.add_argument("--trace", type=Path, help="writes what Chrome's trace viewer shows")
    return parser.parse_args()


def _print_kernels(watched: profile, run: Run) -> None:
    """Kernels by the time that they take in all, then the share of the run that they fill."""
    found = [event for event in watched.key_averages() if event.self_device_time_total > 0]
    found.sort(key=lambda event: -event.self_device_time_total)
    busy_s = sum(event.self_device_time_total for event in found) / 1e6
    for event in found[:_SHOWN]:
        total_ms = event.self_device_time_total / 1e3
        each_us = event.self_device_time_total / event.count
        name = event.key[:_NAME_LENGTH]
        print(f"{total_ms:10.2f} ms {event.count:7} x {each_us:9.1f} us  {name}")
    steps = max(len(trace.token_s) for trace in run.traces)
    print(f"run {1000 * run.seconds:.1f} ms, {steps} tokens, kernels {1000 * busy_s:.1f} ms in all")
    _print_idle(watched)


def _print_idle(watched: profile) -> None:
    """How long nothing ran: in all, and behind and before which kernels."""
    results = watched.profiler.kineto_results if watched.profiler else None
    if results is None:
        return
    on_device = [event for event in results.events() if event.device_type() == DeviceType.CUDA]
    spans = sorted((event.start_ns(), event.duration_ns(), event.name()) for event in on_device)
    if not spans:
        return
    between: defaultdict[str, list[int]] = defaultdict(list)
    busy_ns, end_ns, before = 0, spans[0][0], ""
    for start_ns, duration_ns, name in spans:
        if start_ns > end_ns:
            pair = f"{before[: _NAME_LENGTH // 2]} -> {name[: _NAME_LENGTH // 2]}"
            between[pair].append(start_ns - end_ns)
        if start_ns + duration_ns > end_ns:
            busy_ns += start_ns + duration_ns - max(start_ns, end_ns)
            end_ns, before = start_ns + duration_ns, name
    idle_ns = end_ns - spans[0][0] - busy_ns
    print(f"device busy {busy_ns / 1e6:.1f} ms, idle {idle_ns / 1e6:.1f} ms")
    for pair, gaps in sorted(between.items(), key=lambda item: -sum(item[1]))[:_SHOWN]:
        each_us = sum(gaps) / len(gaps) / 1e3
        print(f"{sum(gaps) / 1e6:10.2f} ms {len(gaps):7} x {each_us:9.1f} us  {pair}")


if __name__ == "__main__":
    sys.exit(main())
