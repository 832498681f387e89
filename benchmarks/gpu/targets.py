"""What is to be reached on one H200, and by which figure each target is judged.

"Must" is better than the best published engine, scaled by memory bandwidth where another card was
measured; "aim" is 75 to 90 % of the roofline. The roofline is that of 4.3 TB/s, which a copy
reaches on an H200. On another card the same table only tells where one stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.gpu.shapes import LLAMA_8B, QWEN_4B, QWEN_8B, QWEN_SMALL
from benchmarks.harness import Figure


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the median of one figure."""

    section: str
    what: str
    metric: str
    unit: str
    x: int
    must: float
    aim: float
    is_least: bool = False
    """True where more is better."""

    def find(self, figures: Sequence[Figure], provider: str) -> Figure | None:
        """The figure that the target is about."""
        key = (self.what, self.metric, self.unit, self.x, provider)
        for figure in figures:
            if (figure.what, figure.metric, figure.unit, figure.x, figure.provider) == key:
                return figure
        return None

    def judge(self, value: float) -> str:
        """Which of the two bounds `value` keeps."""
        for bound, verdict in ((self.aim, "met, the aim too"), (self.must, "met")):
            if value >= bound if self.is_least else value <= bound:
                return verdict
        return "**not met**"


def _step(name: str, must: float, aim: float) -> Target:
    return Target("decode-step", f"{name} decode", "step", "ms", 1, must, aim)


def _work(section: str, name: str, must: float, aim: float) -> Target:
    return Target(section, f"{name} 256 requests", "output", "tok/s", 256, must, aim, is_least=True)


TARGETS: Final = (
    _step(LLAMA_8B, 4.2, 3.8),
    _step(QWEN_8B, 4.2, 3.8),
    _step(QWEN_4B, 2.4, 2.1),
    _step(QWEN_SMALL, 1.0, 0.6),
    _work("workload", QWEN_SMALL, 26_000, 30_000),
    _work("large-workload", LLAMA_8B, 10_500, 12_000),
    Target("http", f"{LLAMA_8B} over HTTP, idle", "first token", "ms", 128, 10, 7),
    Target("http", f"{LLAMA_8B} over HTTP, idle", "first token", "ms", 1024, 28, 23),
    Target("http", f"{LLAMA_8B} over HTTP, 200 streams", "CPU at 8k tok/s", "cores", 200, 1.0, 1.0),
    Target(
        "http", f"{LLAMA_8B} over HTTP, 200 streams", "gateway's CPU at 8k tok/s", "cores", 200,
        0.25, 0.25,
    ),
    Target("gaps", f"{LLAMA_8B} beside a long prompt", "gap p99 over steady p99", "ratio", 256,
           1.5, 1.5),
    Target("prefix-cost", f"{QWEN_SMALL} prefix cache without hits", "cost", "%", 256, 1.0, 0.3),
    Target("wake", f"{LLAMA_8B} standby", "wake to first token", "s", 1, 0.5, 0.35),
    Target("load", "load cold", "share of the drive's", "%", 4096, 90, 90, is_least=True),
    Target("large-start", f"{LLAMA_8B} start", "weights", "s", 1, 4.0, 4.0),
)  # fmt: skip
