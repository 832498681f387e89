"""Load on one port: one raw request again and again on each of N connections.

Closed loop unless `--rate` is given: a connection sends its next request when it has the whole
answer. With `--rate` requests have their times beforehand, and one that is late because the answer
before it was slow counts from when it should have been sent. Once time is up none begins and those
under way are let finish. Prints one JSON line (`Report`).
`python -m benchmarks.gateway.load_client PORT REQUEST_FILE NUM_CONNECTIONS SECONDS [--rate N]`.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import uvloop

EVENT = b"data: "
LAST_CHUNK = b"0\r\n\r\n"


class Report(msgspec.Struct, frozen=True):
    """What came back. Gaps are those between the pieces of an answer, after its first."""

    num_requests: int
    num_events: int
    num_failures: int
    first_failure: str
    p50_ms: float
    p99_ms: float
    first_byte_p50_ms: float
    first_byte_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float


@dataclass
class Tally:
    """What all connections have seen. Units: seconds."""

    stop_s: float
    num_open: int = 0
    num_requests: int = 0
    num_events: int = 0
    num_failures: int = 0
    first_failure: str = ""
    durations_s: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def report(self) -> Report:
        """Counts and quantiles."""
        return Report(
            self.num_requests,
            self.num_events,
            self.num_failures,
            self.first_failure,
            *_find_p50_and_p99_ms(self.durations_s),
            *_find_p50_and_p99_ms(self.first_byte_s),
            *_find_p50_and_p99_ms(self.gaps_s),
        )


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(
        self, request: bytes, tally: Tally, done: asyncio.Event, times_s: "Times | None"
    ) -> None:
        """`done` is set by the last connection to finish; `times_s` None sends at once."""
        self._request = request
        self._tally = tally
        self._done = done
        self._times_s = times_s
        self._answer = bytearray()
        self._begun_s = 0.0
        self._last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._tally.num_open += 1
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts itself out."""
        self._tally.num_open -= 1
        if not self._tally.num_open:
            self._done.set()

    def data_received(self, data: bytes) -> None:
        """Counts, and goes on to the next request at the end of the answer."""
        tally, now_s = self._tally, time.perf_counter()
        if self._answer:
            tally.gaps_s.append(now_s - self._last_s)
        else:
            tally.first_byte_s.append(now_s - self._begun_s)
            if not data.startswith(b"HTTP/1.1 200"):
                tally.num_failures += 1
                tally.first_failure = tally.first_failure or data.decode("latin-1")
        self._last_s = now_s
        tally.num_events += data.count(EVENT)
        self._answer += data
        if self._is_whole():
            tally.num_requests += 1
            tally.durations_s.append(now_s - self._begun_s)
            self._go_on()

    def _is_whole(self) -> bool:
        """True when the answer has come to its end."""
        answer = self._answer
        head_end = answer.find(b"\r\n\r\n")
        if head_end < 0:
            return False
        head = bytes(answer[:head_end]).lower()
        if b"transfer-encoding: chunked" in head:
            return answer.endswith(LAST_CHUNK)
        start = head.index(b"content-length: ") + 16
        length = int(head[start:].split(b"\r\n", 1)[0])
        return len(answer) == head_end + 4 + length

    def _go_on(self) -> None:
        """The next request, now or at its time, or the end."""
        self._answer.clear()
        now_s = time.perf_counter()
        due_s = now_s if self._times_s is None else self._times_s.take()
        if max(due_s, now_s) >= self._tally.stop_s:
            self._transport.close()
        elif due_s <= now_s:
            self._send(due_s)
        else:
            asyncio.get_running_loop().call_later(due_s - now_s, self._send, due_s)

    def _send(self, due_s: float) -> None:
        self._begun_s = due_s
        self._transport.write(self._request)


class Times:
    """When requests are to be sent, evenly, whichever connection is free."""

    def __init__(self, rate_per_s: float) -> None:
        """From now on."""
        self._step_s = 1 / rate_per_s
        self._next_s = time.perf_counter()

    def take(self) -> float:
        """The next one."""
        self._next_s += self._step_s
        return self._next_s


async def run(
    port: int, request: bytes, num_connections: int, seconds: float, rate_per_s: float | None
) -> Tally:
    """What came back."""
    loop = asyncio.get_running_loop()
    tally, done = Tally(time.perf_counter() + seconds), asyncio.Event()
    times_s = None if rate_per_s is None else Times(rate_per_s)
    for _ in range(num_connections):
        await loop.create_connection(
            lambda: Connection(request, tally, done, times_s), "127.0.0.1", port
        )
    await done.wait()
    return tally


def _find_p50_and_p99_ms(samples_s: Sequence[float]) -> tuple[float, float]:
    if len(samples_s) < 2:
        return (0.0, 0.0) if not samples_s else (samples_s[0] * 1e3, samples_s[0] * 1e3)
    p99_s = statistics.quantiles(samples_s, n=100, method="inclusive")[98]
    return statistics.median(samples_s) * 1e3, p99_s * 1e3


def main() -> None:
    """Runs the load and prints the report."""
    parser = argparse.ArgumentParser(prog="load_client")
    parser.add_argument("port", type=int)
    parser.add_argument("request", type=Path)
    parser.add_argument("num_connections", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    tally = uvloop.run(
        run(
            options.port,
            options.request.read_bytes(),
            options.num_connections,
            options.seconds,
            options.rate,
        )
    )
    print(msgspec.json.encode(tally.report()).decode())


if __name__ == "__main__":
    main()
