"""What metrics cost a request and a token, beside what a request costs in all.

`python -m benchmarks.gateway.bench_metrics`. Calls the counters as the gateway and a node do, in a
loop of their own. Appends to `results/metrics_cost.csv`; one of `bench_overhead`'s small requests
takes some 300 microseconds on the same machine.
"""

import time
from collections.abc import Callable

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.ids import ModelName
from contracts.inference import Usage
from gateway.telemetry import Step, Telemetry
from gpu_pool.server.stream_meter import NodeMeter

RESULTS = "metrics_cost.csv"
MODEL = ModelName("@hearth/tiny-chat")
USAGE = Usage(100, 60, 20)
ROUNDS = 15
CALLS = 4000


def main() -> None:
    """Measures, prints and appends."""
    telemetry, node = Telemetry(), NodeMeter(time.monotonic)

    def count_request() -> None:
        for step in Step:
            began_s = time.monotonic()
            telemetry.count_step(step, time.monotonic() - began_s)
        telemetry.count_first_text(MODEL, 0.02)
        telemetry.count_token_gap(MODEL, 0.01)
        telemetry.count_usage(MODEL, USAGE)
        telemetry.count_request("run", 200, MODEL, 0.4)

    def count_stream() -> None:
        stream = node.open(MODEL)
        stream.note_accepted()
        stream.note_end("stop", USAGE)

    note_tokens = node.open(MODEL).note_tokens
    figures = [
        measure("gateway", "a request", count_request),
        measure("node", "a request", count_stream),
        measure("node", "a token", note_tokens),
        measure("gateway", "a scrape", lambda: list(telemetry.collect()), calls=50),
    ]
    print_figures(figures)
    path = append_figures(RESULTS, figures, describe_circumstances(("prometheus-client",)))
    print(f"appended to {path}")


def measure(provider: str, metric: str, call: Callable[[], object], calls: int = CALLS) -> Figure:
    """CPU time of one call, in microseconds."""
    samples: list[float] = []
    for _ in range(ROUNDS):
        began_ns = time.process_time_ns()
        for _ in range(calls):
            call()
        samples.append((time.process_time_ns() - began_ns) / calls / 1000)
    return summarise("metrics", provider, metric, "us", 1, samples)


if __name__ == "__main__":
    main()
