"""What the gateway costs in CPU, against the bare relay, in interleaved rounds on one core.

`python -m benchmarks.gateway.bench_overhead [--rounds 5] [--seconds 2]`. The gateway authenticates
every request against a real tenancy, parses, routes, seals grants and counts; the relay checks
nothing. Appends to `results/gateway_overhead.csv`; the rows that count are the ratios.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.bench_processes import (
    OTHER_CORE,
    PACED,
    QUICK,
    Subject,
    pin,
    read_cpu_s,
    start_gateway,
    start_relay,
)
from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)

RESULTS = "gateway_overhead.csv"
PACKAGES = ("uvicorn", "httptools", "uvloop", "aiohttp", "msgspec")
QUESTION = "Which animal jumps over the lazy dog, and what colour is it? " * 5


@dataclass(frozen=True)
class Cell:
    """One kind of load. Units: `cpu_unit` says per what CPU time is counted."""

    name: str
    model: str
    num_connections: int
    num_messages: int
    is_stream: bool

    @property
    def metric(self) -> str:
        """What is divided by."""
        return "CPU per event" if self.is_stream else "CPU per request"

    def format_request(self, subject: Subject) -> bytes:
        """The request as bytes, the same for both subjects but for path and token."""
        message = {"role": "user", "content": QUESTION}
        body = json.dumps(
            {
                "model": self.model,
                "messages": [message] * self.num_messages,
                "max_tokens": 64,
                "stream": self.is_stream,
            }
        ).encode()
        path = f"/client/v4/accounts/{subject.account_id}/ai/v1/chat/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            f"{subject.api_token}\r\nContent-Type: application/json\r\nAccept: */*\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


CELLS = (
    Cell("small", QUICK, 64, 1, is_stream=False),
    Cell("big (40 KB)", QUICK, 16, 110, is_stream=False),
    Cell("sse", PACED, 64, 1, is_stream=True),
)


@dataclass(frozen=True)
class Sample:
    """One cell of one round."""

    cell: Cell
    provider: str
    cpu_us: float
    rate_per_s: float
    p50_ms: float


def measure(cell: Cell, subject: Subject, seconds: float, folder: Path) -> Sample:
    """Loads `subject` for `seconds` and divides its CPU by what it served."""
    file = folder / "request"
    file.write_bytes(cell.format_request(subject))
    arguments = [str(subject.port), str(file), str(cell.num_connections), str(seconds)]
    before_s = read_cpu_s(subject.pid)
    client = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway.load_client", *arguments],
        stdout=subprocess.PIPE,
    )
    pin(client.pid, OTHER_CORE)
    output, _ = client.communicate(timeout=seconds + 60)
    tally = json.loads(output)
    assert not tally["num_failures"], tally
    cpu_s = read_cpu_s(subject.pid) - before_s
    count = tally["num_events"] if cell.is_stream else tally["num_requests"]
    return Sample(cell, subject.provider, cpu_s / count * 1e6, count / seconds, tally["p50_ms"])


def to_figures(samples: Sequence[Sample]) -> list[Figure]:
    """Medians per cell and provider."""
    figures: list[Figure] = []
    for cell in CELLS:
        for provider in dict.fromkeys(sample.provider for sample in samples):
            mine = [s for s in samples if s.cell is cell and s.provider == provider]
            if not mine:
                continue
            at = (cell.name, provider)
            x = cell.num_connections
            figures.append(summarise(*at, cell.metric, "us", x, [s.cpu_us for s in mine]))
            if not cell.is_stream:
                figures.append(summarise(*at, "rate", "1/s", x, [s.rate_per_s for s in mine]))
                figures.append(summarise(*at, "latency p50", "ms", x, [s.p50_ms for s in mine]))
    return figures


async def run(num_rounds: int, seconds: float, names: Sequence[str]) -> list[Sample]:
    """Every cell in every round, subjects in turn; one short round before to warm up."""
    cells = [cell for cell in CELLS if not names or cell.name.split()[0] in names]
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        async with start_gateway(Path(folder)) as gateway:
            with start_relay() as relay:
                for number in range(-1, num_rounds):
                    for cell in cells:
                        for subject in (gateway, relay):
                            length_s = seconds if number >= 0 else 0.3
                            sample = measure(cell, subject, length_s, Path(folder))
                            if number >= 0:
                                samples.append(sample)
    return samples


def main() -> None:
    """Runs the rounds, prints medians and ratios, appends the rows."""
    parser = argparse.ArgumentParser(prog="bench_overhead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cells", nargs="*", default=[], help="small, big, sse; all without it")
    parser.add_argument("--dry", action="store_true", help="append nothing")
    options = parser.parse_args()
    samples = asyncio.run(run(options.rounds, options.seconds, options.cells))
    figures = to_figures(samples)
    figures += compute_ratios(figures, "hearth")
    print_figures(figures)
    if not options.dry:
        print(append_figures(RESULTS, figures, describe_circumstances(PACKAGES)))


if __name__ == "__main__":
    main()
