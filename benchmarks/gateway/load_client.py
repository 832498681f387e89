"""A closed-loop load: one raw request again and again on each of N connections.

A connection sends its next request when it has the whole answer; once time is up none begins and
those under way are let finish. Prints one JSON line.
`python -m benchmarks.gateway.load_client PORT REQUEST_FILE NUM_CONNECTIONS SECONDS`.
"""

import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

EVENT = b"data: "
LAST_CHUNK = b"0\r\n\r\n"


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


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, request: bytes, tally: Tally, done: asyncio.Event) -> None:
        """`done` is set by the last connection to finish."""
        self._request = request
        self._tally = tally
        self._done = done
        self._answer = bytearray()
        self._missing: int | None = None
        self._begun_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._tally.num_open += 1
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts itself out."""
        self._tally.num_open -= 1
        if not self._tally.num_open:
            self._done.set()

    def data_received(self, data: bytes) -> None:
        """Counts, and goes on to the next request at the end of the answer."""
        tally = self._tally
        if not self._answer:
            tally.first_byte_s.append(time.perf_counter() - self._begun_s)
            if not data.startswith(b"HTTP/1.1 200"):
                tally.num_failures += 1
                tally.first_failure = tally.first_failure or data.decode("latin-1")
        tally.num_events += data.count(EVENT)
        self._answer += data
        if self._is_whole():
            tally.num_requests += 1
            tally.durations_s.append(time.perf_counter() - self._begun_s)
            self._send()

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

    def _send(self) -> None:
        """The next request, or the end."""
        self._answer.clear()
        self._begun_s = time.perf_counter()
        if self._begun_s >= self._tally.stop_s:
            self._transport.close()
        else:
            self._transport.write(self._request)


async def run(port: int, request: bytes, num_connections: int, seconds: float) -> Tally:
    """What came back."""
    loop = asyncio.get_running_loop()
    tally, done = Tally(time.perf_counter() + seconds), asyncio.Event()
    for _ in range(num_connections):
        await loop.create_connection(lambda: Connection(request, tally, done), "127.0.0.1", port)
    await done.wait()
    return tally


def main() -> None:
    """Runs the load and prints the tally."""
    port, file, num_connections, seconds = sys.argv[1:]
    request = Path(file).read_bytes()
    tally = uvloop.run(run(int(port), request, int(num_connections), float(seconds)))
    print(
        json.dumps(
            {
                "num_requests": tally.num_requests,
                "num_events": tally.num_events,
                "num_failures": tally.num_failures,
                "first_failure": tally.first_failure,
                "p50_ms": statistics.median(tally.durations_s) * 1e3,
                "first_byte_p50_ms": statistics.median(tally.first_byte_s) * 1e3,
            }
        )
    )


if __name__ == "__main__":
    main()
