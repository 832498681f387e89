"""Kinds of load, how one is put on a subject, and the figures that come of it.

CPU time is that of the subject's process and its children, divided by what it served; what stands
behind it is told apart. Read next: `bench_overhead`, `bench_peers`.
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.gateway.bench_processes import (
    OTHER_CORE,
    PACED,
    QUICK,
    Subject,
    pin,
    python,
    read_cpu_s,
)
from benchmarks.gateway.load_client import Report
from benchmarks.harness import Figure, summarise

QUESTION = "Which animal jumps over the lazy dog, and what colour is it? " * 5


@dataclass(frozen=True)
class Cell:
    """One kind of load."""

    name: str
    model: str
    num_connections: int
    num_messages: int
    is_stream: bool
    rate_per_s: float | None = None
    """Requests at their times; None: each connection as fast as it can."""

    @property
    def unit_of_work(self) -> str:
        """What CPU time is divided by."""
        return "event" if self.is_stream else "request"

    def format_request(self, subject: Subject) -> bytes:
        """The request as bytes, the same for all subjects but for path and credentials."""
        message = {"role": "user", "content": QUESTION}
        body = json.dumps(
            {
                "model": self.model,
                "messages": [message] * self.num_messages,
                "max_tokens": 64,
                "stream": self.is_stream,
            }
        ).encode()
        extra = "".join(f"{name}: {value}\r\n" for name, value in subject.headers.items())
        head = (
            f"POST {subject.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            f"{subject.api_token}\r\nContent-Type: application/json\r\nAccept: */*\r\n"
            f"{extra}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


SMALL = Cell("small", QUICK, 64, 1, is_stream=False)
BIG = Cell("big (40 KB)", QUICK, 16, 110, is_stream=False)
STREAMS = Cell("sse", PACED, 64, 1, is_stream=True)
MANY_STREAMS = Cell("sse", PACED, 256, 1, is_stream=True)
STEADY = Cell("steady, 50 a second", QUICK, 32, 1, is_stream=False, rate_per_s=50)


@dataclass(frozen=True)
class Sample:
    """One cell of one round."""

    cell: Cell
    provider: str
    seconds: float
    cpu_us: float
    upstream_cpu_us: float
    report: Report


def measure(cell: Cell, subject: Subject, seconds: float, folder: Path) -> Sample:
    """Loads `subject` for `seconds` and divides its CPU by what it served.

    Raises: `RuntimeError` for an answer that is not a 200.
    """
    file = folder / "request"
    file.write_bytes(cell.format_request(subject))
    words = [str(subject.port), str(file), str(cell.num_connections), str(seconds)]
    if cell.rate_per_s is not None:
        words += ["--rate", str(cell.rate_per_s)]
    before_s, upstream_before_s = read_cpu_s(subject.pid), read_cpu_s(*subject.upstream_pids)
    command = python("benchmarks.gateway.load_client", *words)
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    pin(client.pid, OTHER_CORE)
    output, _ = client.communicate(timeout=seconds + 120)
    report = msgspec.json.decode(output, type=Report)
    if report.num_failures or not report.num_requests:
        raise RuntimeError(f"{subject.provider}, {cell.name}: {report}")
    cpu_s = read_cpu_s(subject.pid) - before_s
    upstream_cpu_s = read_cpu_s(*subject.upstream_pids) - upstream_before_s
    us = 1e6 / (report.num_events if cell.is_stream else report.num_requests)
    return Sample(cell, subject.provider, seconds, cpu_s * us, upstream_cpu_s * us, report)


def to_figures(samples: Sequence[Sample]) -> list[Figure]:
    """Medians per cell and provider, in the order in which they were measured."""
    kinds = dict.fromkeys((sample.cell, sample.provider) for sample in samples)
    figures: list[Figure] = []
    for cell, provider in kinds:
        mine = [s for s in samples if s.cell is cell and s.provider == provider]
        for (metric, unit), values in _tell(cell, mine).items():
            figures.append(
                summarise(cell.name, provider, metric, unit, cell.num_connections, values)
            )
    return figures


def _tell(cell: Cell, samples: Sequence[Sample]) -> dict[tuple[str, str], list[float]]:
    """What a cell is measured for: metric and unit, with a value for each round."""
    reports = [sample.report for sample in samples]
    told = {
        (f"CPU per {cell.unit_of_work}", "us"): [s.cpu_us for s in samples],
        (f"CPU behind it per {cell.unit_of_work}", "us"): [s.upstream_cpu_us for s in samples],
    }
    if cell.is_stream:
        return told | {
            ("gap p50", "ms"): [r.gap_p50_ms for r in reports],
            ("gap p99", "ms"): [r.gap_p99_ms for r in reports],
            ("first byte p50", "ms"): [r.first_byte_p50_ms for r in reports],
            ("first byte p99", "ms"): [r.first_byte_p99_ms for r in reports],
        }
    told[("latency p50", "ms")] = [r.p50_ms for r in reports]
    told[("latency p99", "ms")] = [r.p99_ms for r in reports]
    if cell.rate_per_s is None:
        told[("rate", "1/s")] = [s.report.num_requests / s.seconds for s in samples]
    return told
